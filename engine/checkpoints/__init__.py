"""Writes checkpoints of the real architecture; the tiny one here: toy size, random weights from a seed.

Knows nothing of serving. Trained weights go through `writer.write_checkpoint` too.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from checkpoints.corpus import corpus
from checkpoints.layout import Slot
from checkpoints.sizes import Sizes
from checkpoints.tokenizer import train_tokenizer
from checkpoints.writer import generator, write_checkpoint

__all__ = ["Sizes", "make_tiny"]

_UNIFORM_STEPS = 1 << 16
_UNIFORMS = 12


def make_tiny(directory: Path, seed: int, size: Sizes | None = None) -> None:
    """Write a random checkpoint with its drafter into `directory`. The same seed gives the same bytes.

    Encoding the experts of the full size takes minutes of one CPU core.
    """
    size = size or Sizes()
    tokenizer = train_tokenizer(corpus(seed), size)
    write_checkpoint(directory, size, tokenizer, lambda slot: _random(slot, seed), lambda slot: _random(slot, seed), seed)


def _random(slot: Slot, seed: int) -> Tensor:
    """Nearly normal values, fp32. Drafter and target names differ, so no value repeats."""
    # exact: sums of integers have the same bits on every processor; a library's normal numbers do not.
    dice = torch.randint(0, _UNIFORM_STEPS, (_UNIFORMS, *slot.shape), generator=generator(seed, slot.name), dtype=torch.int64)
    centred = dice.sum(0).double() / _UNIFORM_STEPS - _UNIFORMS / 2
    return (slot.mean + slot.std * centred).float()
