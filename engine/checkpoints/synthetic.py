"""Checkpoints whose weights were never trained or encoded: any shapes, random trellis words, made as fast as a disk takes them.

For timing and for tests of loading. What comes out of such a model means nothing; its routing still differs from token to token.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from checkpoints.corpus import corpus
from checkpoints.layout import Slot
from checkpoints.sizes import Sizes
from checkpoints.tokenizer import train_tokenizer
from checkpoints.writer import BITS, CODEBOOK, write_checkpoint
from lockstep.kernels.exl3 import Exl3Matrix

# What one of two ranks holds of the published model: half the heads, half of every width that is split, half of the vocabulary.
ONE_OF_TWO = Sizes(
    vocab=77440, hidden=4096, layers=45, dense_layers=3, dense_width=6144, experts=288, experts_per_token=8, expert_width=1024, heads=32,
    q_lora=1536, kv_lora=512, nope=256, value=256, index_heads=32, index_dim=128, index_topk=2048, linear_heads=32, linear_dim=128,
    context=1048576, drafter_layers=1, drafter_heads=16, drafter_kv_heads=4, drafter_dim=128, drafter_width=4096, drafter_window=2048,
    drafter_rank=256,
)  # fmt: skip
SHAPES = {"one-of-two": ONE_OF_TWO, "embedded": Sizes()}
# Root mean square of the codebook's values.
_CODEBOOK_SIZE = 1.244


def make_synthetic(directory: Path, shapes: str, layers: int, device: str, seed: int) -> None:
    """Write a checkpoint of `layers` trunk layers with its drafter into `directory`; `shapes` is a key of `SHAPES`.

    Values are drawn on `device`, where the same seed gives the same bytes. Every fourth layer is a DSA layer, as published; the first
    layers, three of the real shapes, have a dense feed-forward part. Raises ValueError for fewer than one layer.
    """
    if layers < 1:
        raise ValueError(f"{layers} layers; needed: at least 1")
    size = SHAPES[shapes]
    taps = tuple(sorted({layers * part // 3 for part in range(3)}))
    size = replace(size, layers=layers, dense_layers=min(size.dense_layers, layers), drafter_taps=taps)
    draw = torch.Generator(device).manual_seed(seed)
    tokenizer = train_tokenizer(corpus(seed), size)
    write_checkpoint(directory, size, tokenizer, lambda slot: drawn(slot, draw), lambda slot: drawn(slot, draw), seed)


def drawn(slot: Slot, draw: torch.Generator) -> Tensor | Exl3Matrix:
    """Random values of a slot, on the device of `draw`; an EXL3 slot as random words."""
    if not slot.exl3:
        return torch.randn(slot.shape, generator=draw, device=draw.device).mul_(slot.std).add_(slot.mean)
    outputs, inputs = slot.shape
    shape = (inputs // 16, outputs // 16, 16 * BITS)
    words = torch.randint(-(1 << 15), 1 << 15, shape, generator=draw, device=draw.device, dtype=torch.int16)
    return Exl3Matrix(words, _signs(inputs, draw) * (slot.std / _CODEBOOK_SIZE), _signs(outputs, draw), CODEBOOK)


def _signs(count: int, draw: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=draw, device=draw.device).mul_(2).sub_(1).half()
