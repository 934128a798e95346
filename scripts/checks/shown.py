"""Which test shows what: each code of the host side, each fault known from the field (tests/shown.toml), each fault of servers with this
API (tests/shown_api.toml).

Holds that every test named exists and that one named for a code speaks of it; writes the pages of both. Runs none.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.listing import ROOT

LIST, API_LIST = "tests/shown.toml", "tests/shown_api.toml"
CODES_PAGE, FAULTS_PAGE, API_PAGE = "docs/code_tests.md", "docs/field_faults.md", "docs/api_faults.md"
BATS = re.compile(r'^@test "(?P<name>[^"]*)" \{$(?P<body>.*?)^\}', re.MULTILINE | re.DOTALL)


def read(root: Path) -> Mapping[str, Any]:
    both = [tomllib.loads((root / name).read_text(encoding="utf-8")) for name in (LIST, API_LIST)]
    return both[0] | {"api": both[1]}


def tests_of(place: Path) -> dict[str, str]:
    """Name to text, with its decorators, of every test in a file."""
    source = place.read_text(encoding="utf-8")
    if place.suffix == ".bats":
        return {found["name"]: found["body"] for found in BATS.finditer(source)}
    lines = source.splitlines()
    return {
        node.name: "\n".join(lines[min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def findings(root: Path) -> Iterator[str]:
    """One line for each test that is not there, does not speak of its code, or page that is not what the list says."""
    told = read(root)
    known: dict[Path, dict[str, str]] = {}
    wanted = [(test, code) for code, test in told["codes"].items()]
    wanted += [(test, "") for rows in (told["faults"], told["api"]) for row in rows.values() for test in row["tests"]]
    for test, code in wanted:
        name, _, function = test.partition("::")
        place = root / "tests" / name
        if place not in known:
            known[place] = tests_of(place) if place.is_file() else {}
        if function not in known[place]:
            yield f"{LIST}: there is no test {test}"
        elif not re.search(rf"\b{code}\b", known[place][function]):
            yield f"{LIST}: {test} does not speak of {code}"
    for name, text in pages(root).items():
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text:
            yield f"{name} is not what {LIST} says: PYTHONPATH=scripts python -m checks.shown --page"


def pages(root: Path) -> dict[str, str]:
    told = read(root)
    codes = ((f"`{code}`", _shown(test)) for code, test in told["codes"].items())
    faults = ((number, row["symptom"], row["here"], _all_shown(row)) for number, row in told["faults"].items())
    api = ((number, row["symptom"], row["reported"], _all_shown(row)) for number, row in told["api"].items())
    left_out = " Left out are faults that need GPUs to be seen."
    return {
        API_PAGE: _page("Faults of servers with this API, tried on this one", API_LIST, "", ("#", "fault", "reported", "tried by"), api),
        CODES_PAGE: _page("The test that fires each code", LIST, "", ("code", "test"), codes),
        FAULTS_PAGE: _page(
            "Faults known from the field, and what happens here", LIST, left_out, ("#", "reported", "here", "shown by"), faults
        ),
    }


def _page(title: str, source: str, more: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = f"Generated from `{source}` by `python -m checks.shown --page`. That every test named is there is a check.{more}"
    table = [columns, ["---"] * len(columns), *rows]
    return "\n".join([f"# {title}", "", head, "", *(f"| {' | '.join(row)} |" for row in table), ""])


def _all_shown(row: Mapping[str, Any]) -> str:
    return "<br>".join(map(_shown, row["tests"]))


def _shown(test: str) -> str:
    name, _, function = test.partition("::")
    return f"`{name}` {function.removeprefix('test_').replace('_', ' ')}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--page"]:
        for name, text in pages(ROOT).items():
            (ROOT / name).write_text(text, encoding="utf-8")
    found = list(findings(ROOT))
    print("\n".join(found))
    sys.exit(bool(found))
