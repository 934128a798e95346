"""Writes the trained checkpoint: `python -m embedded.make.export --work DIR --text DIR --out DIR`.

`--work` is what `embedded.make.train --stage finish` left, `--text` the folder of the tokenizer it was trained with. Layout, types and
manifest are the writer's of `checkpoints`; this module only says where each value comes from.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from embedded.make import state
from embedded.make.quantise import coded_matrix
from torch import Tensor

from checkpoints.layout import Slot
from checkpoints.sizes import Sizes
from checkpoints.writer import write_checkpoint
from lockstep.kernels.exl3 import Exl3Matrix

MOST_BYTES = 12 << 20


def export(work: Path, tokenizer: str, out: Path, seed: int) -> int:
    """Writes `out`; returns its bytes. Raises ValueError if they are more than `MOST_BYTES`."""
    rest, coded, drafter = (state.load(work, stem, "cpu") for stem in ("rest", "experts", "drafter"))

    def draw(slot: Slot) -> Tensor | Exl3Matrix:
        return coded_matrix(coded, slot.name) if slot.exl3 else rest[slot.name]

    write_checkpoint(out, Sizes(), tokenizer, draw, lambda slot: drafter[slot.name], seed)
    size = sum(file.stat().st_size for folder in (out, out / "drafter") for file in folder.iterdir() if file.is_file())
    if size > MOST_BYTES:
        raise ValueError(f"{out} holds {size:,} bytes, needed at most {MOST_BYTES:,}; train a smaller model")
    return size


def main() -> None:
    parser = argparse.ArgumentParser(prog="embedded.make.export", description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--text", type=Path, default=Path("embedded"))
    parser.add_argument("--out", type=Path, default=Path("embedded"))
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    export(o.work, (o.text / "tokenizer.json").read_text(encoding="utf-8"), o.out, o.seed)


if __name__ == "__main__":
    main()
