"""`verify SUITE`: asks a server the bundled questions of a suite and gives the verdict as exit status. Knows the options, no check."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from failure import Failure
from verify import gates, report, suite
from verify.client import parse_url, probe

KEY_VARIABLE = "QUALITY_API_KEY"
SUITES: dict[str, Callable[[suite.Options], Sequence[suite.Check]]] = {
    "quality": lambda _: suite.CHECKS,
    "gate": gates.gate,
    "gatelong": gates.gatelong,
    "reuse": gates.reuse,
    "ranks": gates.ranks,
}


class Screen(Protocol):
    """Where the table goes, line by line."""

    def line(self, text: str) -> None: ...

    def headline(self, text: str) -> None: ...


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failure("E_CONFIG", found=f"{self.prog.removeprefix('./start.sh ')}: {message}", needed=self.format_usage().strip())


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(int(part.replace("_", "")) for part in text.split(","))


def parser(name: str, base_url: str) -> argparse.ArgumentParser:
    """`base_url` is the default: this installation's own server, empty if none runs."""
    made = _Parser(prog=f"./start.sh verify {name}", description=SUITES[name].__doc__)
    made.add_argument("--base-url", default=base_url, help="server to ask (default: the one this installation runs)")
    made.add_argument("--json", type=Path, help="write the whole result to this file")
    made.add_argument("--only", default="", help="checks to run, separated by commas")
    made.add_argument("--lengths", "--needle-tokens", type=_lengths, default=(), help="prompt lengths of the checks that have some")
    if name == "gate":
        made.add_argument("--references", type=Path, help="hashes of serial replies to find again; written if there is no such file")
    return made


def run(arguments: Sequence[str], screen: Screen, base_url: str = "", key: str = "", name: str = "quality") -> int:
    """0 if every check of suite `name` that ran passed, else 1. Raises Failure E_CONFIG, E_API or E_UNCHECKED.

    `key` is that of this installation; another server's key comes from the environment.
    """
    told = parser(name, base_url).parse_args(arguments)
    options = suite.Options(tuple(one for one in told.only.split(",") if one), told.lengths, getattr(told, "references", None))
    checks = suite.chosen(SUITES[name](options), options)
    if not told.base_url:
        raise Failure(
            "E_API", found="no server of this installation runs", needed="one to ask", remedy="./start.sh, or give --base-url URL"
        )
    own = key if told.base_url == base_url else ""
    server = probe(parse_url(told.base_url, os.environ.get(KEY_VARIABLE, "") or own))
    screen.headline(f"{name} of {server.model} at {server.host}:{server.port}")
    screen.line(report.HEADER)
    results = []
    for result in suite.run(server, checks, options):
        results.append(result)
        for line in report.row(result):
            screen.line(line)
    screen.headline(report.verdict(name, results))
    if told.json:
        told.json.write_text(json.dumps(report.document(server, name, results), indent=2) + "\n", encoding="utf-8")
    return 0 if report.is_passed(results) else 1
