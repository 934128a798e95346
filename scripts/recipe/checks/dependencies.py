"""Are the tools there that this profile and runtime use?"""

from collections.abc import Mapping

from recipe.checks import Finding


def check(facts: Mapping[str, bool], need: tuple[str, ...]) -> Finding:
    """`facts`: tool name to whether it is on PATH; a tool that was not looked for counts as missing."""
    missing = [tool for tool in need if not facts.get(tool, False)]
    if missing:
        return Finding("E_DEPENDENCY", f"not on PATH: {', '.join(missing)}", ", ".join(need), f"install {' and '.join(missing)}")
    return Finding("I_DEPENDENCY", ", ".join(need))
