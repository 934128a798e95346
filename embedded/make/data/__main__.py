"""Writes training shards: `python -m embedded.make.data --out DIR --tokens N --workers K --seed S`."""

from __future__ import annotations

import argparse
import json
import sys

from embedded.make.data.shards import Plan, write


def main() -> None:
    parser = argparse.ArgumentParser(prog="embedded.make.data", description=__doc__)
    parser.add_argument("--out", required=True, help="folder of the shards")
    parser.add_argument("--checkpoint", default="embedded", help="folder with tokenizer.json and chat_template.jinja")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="row positions in all")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a short row")
    parser.add_argument("--long-length", type=int, default=8192, help="tokens of a long row")
    parser.add_argument("--long-share", type=float, default=0.12, help="share of the tokens in long rows")
    parser.add_argument("--align", type=int, default=64, help="documents start at multiples of this")
    sys.stdout.write(json.dumps(write(Plan(**vars(parser.parse_args())))) + "\n")


if __name__ == "__main__":
    main()
