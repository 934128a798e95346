"""Matrix products whose rows do not see each other. Every product of the model that mixes a row with weights goes through here.

A library may pick another summation order for another number of rows. So rows run in tiles of a fixed size, and what a shape may
do beyond that is decided by comparing bits on this machine, once per shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lockstep.kernels.linear import ref

STEP_ROWS = 8
PROMPT_ROWS = 64


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight ready for `linear`: `weight` is `[in, out]` or `[heads, in, out]`, `tiles` maps a row count to the rows of one call."""

    weight: Tensor
    tiles: dict[int, int]


def pack(weight: Tensor) -> Packed:
    """Pack a stored weight `[out, in]`, or one matrix per head `[heads, out, in]`, and find which row counts keep a row's bits."""
    turned = weight.transpose(-1, -2).contiguous()
    return Packed(turned, ref.safe_tiles(turned, STEP_ROWS, PROMPT_ROWS))


def linear(x: Tensor, packed: Packed) -> Tensor:
    """`x [R, in]` (or `[R, heads, in]`) times the weight, `[R, out]` (`[R, heads, out]`), in x's type; sums in fp32 or wider.

    R is a multiple of 8 up to 32 (step path) or exactly 64 (prompt tile); else ValueError.
    """
    rows = x.shape[0]
    tile = packed.tiles.get(rows)
    if tile is None:
        raise ValueError(f"{rows} rows; needed: 8, 16, 24, 32 or one prompt tile of 64")
    return ref.linear(x, packed.weight, tile) if x.dim() == 2 else ref.head_linear(x, packed.weight, tile)


def batched(a: Tensor, b: Tensor) -> Tensor:
    """`[B, m, k] x [B, k, n]`, the bits of each product independent of B and of its place."""
    return ref.batched(a, b)
