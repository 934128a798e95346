"""Trains the tokenizer of the embedded checkpoint on the generator's own texts: `python -m embedded.make.tokenizer --out DIR`.

Writes tokenizer.json, tokenizer_config.json and chat_template.jinja, which is all the data generator needs. Knows no weights.
"""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from pathlib import Path

from embedded.make.data import corpus
from embedded.make.data.template import tool_frame

from checkpoints.sizes import Sizes
from checkpoints.tokenizer import tokenizer_config, train_tokenizer

CORPUS_SEED = 20


def write_text_files(out: Path, size: Sizes, seed: int = CORPUS_SEED) -> None:
    """Writes the three text files; the same seed and generator give the same bytes."""
    out.mkdir(parents=True, exist_ok=True)
    template = files("checkpoints").joinpath("chat_template.jinja").read_text(encoding="utf-8")
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    (out / "tokenizer.json").write_text(train_tokenizer(corpus(seed, tool_frame(template)), size), encoding="utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(size), indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="embedded.make.tokenizer", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=CORPUS_SEED)
    arguments = parser.parse_args()
    write_text_files(arguments.out, Sizes(), arguments.seed)


if __name__ == "__main__":
    main()
