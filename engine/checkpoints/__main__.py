"""`python -m checkpoints tiny DIRECTORY`: writes a checkpoint and ends. Parses and hands over; decides nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="checkpoints", description="Writes checkpoints with random weights", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    tiny = commands.add_parser("tiny", help="a toy checkpoint of the real architecture, with its drafter", allow_abbrev=False)
    tiny.add_argument("directory", type=Path)
    tiny.add_argument("--seed", type=int, default=20260101)
    tiny.set_defaults(run=_tiny)
    parsed = parser.parse_args(argv)
    return parsed.run(parsed)


def _tiny(parsed: argparse.Namespace) -> int:
    from checkpoints import make_tiny

    make_tiny(parsed.directory, parsed.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
