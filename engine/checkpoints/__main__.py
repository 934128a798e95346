"""`python -m checkpoints tiny DIRECTORY`, or `synthetic`: writes a checkpoint and ends. Parses and hands over; decides nothing."""

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
    synthetic = commands.add_parser("synthetic", help="random words in any number of layers, to time and to load", allow_abbrev=False)
    synthetic.add_argument("directory", type=Path)
    synthetic.add_argument(
        "--shapes", choices=("one-of-two", "embedded"), default="one-of-two", help="widths: a rank of two's, or the toy's"
    )
    synthetic.add_argument("--layers", type=int, default=6, metavar="N")
    synthetic.add_argument("--device", default="cpu", help="where values are drawn: cpu or cuda")
    synthetic.add_argument("--seed", type=int, default=20260101)
    synthetic.set_defaults(run=_synthetic)
    parsed = parser.parse_args(argv)
    return parsed.run(parsed)


def _tiny(parsed: argparse.Namespace) -> int:
    from checkpoints import make_tiny

    make_tiny(parsed.directory, parsed.seed)
    return 0


def _synthetic(parsed: argparse.Namespace) -> int:
    from checkpoints.synthetic import make_synthetic

    make_synthetic(parsed.directory, parsed.shapes, parsed.layers, parsed.device, parsed.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
