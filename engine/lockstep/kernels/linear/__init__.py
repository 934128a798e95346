"""Matrix products whose rows do not see each other. Every product of the model that mixes a row with weights goes through here.

A library may pick another summation order for another number of rows. So rows run in tiles of a fixed size, and what a shape may
do beyond that is decided by comparing bits on this machine, once per shape.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.kernels.linear import ref

STEP_ROWS = 8
MAX_STEP_ROWS = 4 * STEP_ROWS
PROMPT_ROWS = 64


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight ready for `linear`: `weight` is `[in, out]` or `[heads, in, out]`, `tiles` maps a row count to the rows of one call.

    Counts of whole step tiles and of a prompt tile are always there, others where the library gives rows the bits they have in a tile.
    """

    weight: Tensor
    tiles: dict[int, int]


def pack(weight: Tensor) -> Packed:
    """Pack a stored weight `[out, in]`, or one matrix per head `[heads, out, in]`, and find which row counts keep a row's bits."""
    turned = weight.transpose(-1, -2).contiguous()
    return Packed(turned, ref.safe_tiles(turned, STEP_ROWS, PROMPT_ROWS))


def linear(x: Tensor, packed: Packed) -> Tensor:
    """`x [R, in]` (or `[R, heads, in]`) times the weight, `[R, out]` (`[R, heads, out]`), in x's type; sums in fp32 or wider.

    R is 1 to 32 (step path, run in tiles of 8) or exactly 64 (prompt tile); else ValueError.
    """
    rows = x.shape[0]
    tile = packed.tiles.get(rows)
    if tile is None:
        return _filled(x, rows, packed)[:rows]
    return ref.linear(x, packed.weight, tile) if x.dim() == 2 else ref.head_linear(x, packed.weight, tile)


def _filled(x: Tensor, rows: int, packed: Packed) -> Tensor:
    padded = next((count for count in range(rows, MAX_STEP_ROWS + 1) if count in packed.tiles), 0)
    if not 0 < rows <= padded <= MAX_STEP_ROWS:
        raise ValueError(f"{rows} rows; needed: 1 to {MAX_STEP_ROWS}, or one prompt tile of {PROMPT_ROWS}")
    # exact: rows do not see each other, so the rows behind may hold what the last call left there.
    held, array = _spare.rows(padded, x)
    if array is None:
        held[:rows] = x
    else:
        array[:rows] = x.numpy()
    tile = packed.tiles[padded]
    return ref.linear(held, packed.weight, tile) if x.dim() == 2 else ref.head_linear(held, packed.weight, tile)


class _Spare(threading.local):
    """Zero-filled tensors to pad rows in, one set a thread; on the CPU in fp32 also as an array, which is cheaper to fill."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], tuple[Tensor, NDArray[np.float32] | None]] = {}

    def rows(self, count: int, like: Tensor) -> tuple[Tensor, NDArray[np.float32] | None]:
        key = (count, like.shape, like.dtype, like.device)
        found = self._held.get(key)
        if found is None:
            # A tensor of inference mode could not be written outside it.
            with torch.inference_mode(False):
                tensor = torch.zeros(count, *like.shape[1:], dtype=like.dtype, device=like.device)
            plain = tensor.is_cpu and tensor.dtype is torch.float32
            found = self._held[key] = (tensor, tensor.numpy() if plain else None)
        return found


_spare = _Spare()


def batched(a: Tensor, b: Tensor) -> Tensor:
    """`[B, m, k] x [B, k, n]`, the bits of each product independent of B and of its place."""
    return ref.batched(a, b)
