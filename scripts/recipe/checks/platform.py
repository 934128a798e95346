"""Is this a host the recipe runs on?"""

from dataclasses import dataclass

from recipe.checks import Finding


@dataclass(frozen=True)
class Platform:
    """`system` and `machine` as the kernel names them."""

    system: str
    machine: str


def check(facts: Platform, need: tuple[str, ...]) -> Finding:
    """`need`: the machine names supported."""
    if facts.system != "Linux" or facts.machine not in need:
        return Finding("E_PLATFORM", f"{facts.system} on {facts.machine}", f"Linux on {' or '.join(need)}")
    return Finding("I_PLATFORM", f"Linux on {facts.machine}")
