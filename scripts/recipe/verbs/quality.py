"""`verify quality`: asks a server the bundled questions and gives the verdict as exit status. Knows the options, no check."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from recipe.failure import Failure
from recipe.files import write_json
from recipe.quality import report, suite
from recipe.quality.client import parse_url, probe
from recipe.ui import Ui

KEY_VARIABLE = "QUALITY_API_KEY"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failure("E_CONFIG", found=f"verify quality: {message}", needed=self.format_usage().strip())


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(int(part.replace("_", "")) for part in text.split(","))


def parser(base_url: str) -> argparse.ArgumentParser:
    """`base_url` is the default: this installation's own server, empty if none runs."""
    made = _Parser(prog="./start.sh verify quality", description=__doc__)
    made.add_argument("--base-url", default=base_url, help="server to ask (default: the one this installation runs)")
    made.add_argument("--json", type=Path, help="write the whole result to this file")
    made.add_argument("--only", default="", help="checks to run, separated by commas")
    made.add_argument("--needle-tokens", type=_lengths, default=suite.NEEDLE_TOKENS, help="prompt lengths of the needle check")
    return made


def run(arguments: Sequence[str], ui: Ui, base_url: str = "", key: str = "") -> int:
    """0 if every check that ran passed, else 1. Raises Failure E_CONFIG or E_API.

    `key` is that of this installation; another server's key comes from the environment.
    """
    chosen = parser(base_url).parse_args(arguments)
    options = suite.Options(tuple(name for name in chosen.only.split(",") if name), chosen.needle_tokens)
    suite.chosen(options)
    if not chosen.base_url:
        raise Failure(
            "E_API", found="no server of this installation runs", needed="one to ask", remedy="./start.sh, or give --base-url URL"
        )
    own = key if chosen.base_url == base_url else ""
    server = probe(parse_url(chosen.base_url, os.environ.get(KEY_VARIABLE, "") or own))
    ui.headline(f"quality of {server.model} at {server.host}:{server.port}")
    ui.line(report.HEADER)
    results = []
    for result in suite.run(server, options):
        results.append(result)
        for line in report.row(result):
            ui.line(line)
    ui.headline(report.verdict(results))
    if chosen.json:
        write_json(chosen.json, report.document(server, results))
    return 0 if report.is_passed(results) else 1
