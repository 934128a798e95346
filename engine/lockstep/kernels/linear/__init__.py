"""Matrix products whose rows do not see each other. Every product of the model that mixes a row with weights goes through here.

A library may pick another summation order for another number of rows. So rows run in tiles of a fixed size, and what a shape may
do beyond that is decided by comparing bits on this machine, once per shape."""

import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.linear import host, ref, rows
from lockstep.kernels.linear.rows import RowMatrix

STEP_ROWS = 8
MAX_STEP_ROWS = 4 * STEP_ROWS
PROMPT_ROWS = 64


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight ready for `linear`: `weight` is `[in, out]` or `[heads, in, out]`, `tiles` maps a row count to the rows of one call.

    Counts of whole step tiles and of a prompt tile are always there, others where the library gives rows the bits they have in a tile."""

    weight: Tensor
    tiles: dict[int, int]
    _calls: dict[int, tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        counts = {rows: [count for count in self.tiles if rows <= count <= MAX_STEP_ROWS] for rows in range(1, MAX_STEP_ROWS + 1)}
        least = {rows: min(found) for rows, found in counts.items() if found} | {count: count for count in self.tiles}
        object.__setattr__(self, "_calls", {rows: (count, self.tiles[count]) for rows, count in least.items()})

    def call(self, rows: int) -> tuple[int, int]:
        """The smallest row count of `tiles` that holds `rows` rows, and its tile. Raises ValueError if there is none."""
        found = self._calls.get(rows)
        if found is None:
            raise ValueError(f"{rows} rows; needed: 1 to {MAX_STEP_ROWS}, or one prompt tile of {PROMPT_ROWS}")
        return found


def pack(weight: Tensor) -> Packed:
    """Pack a stored weight `[out, in]`, or one matrix per head `[heads, out, in]`, and find which row counts keep a row's bits."""
    turned = weight.transpose(-1, -2).contiguous()
    return Packed(turned, ref.safe_tiles(turned, STEP_ROWS, PROMPT_ROWS))


def pack_rows(weight: Tensor) -> Packed | RowMatrix:
    """As `pack`; on a CUDA device in the form our own kernel reads, where the shape allows."""
    return (rows.of_plain(weight) if weight.dim() == 2 else rows.of_heads(weight)) or pack(weight)


def linear(x: Tensor, packed: Packed | RowMatrix) -> Tensor:
    """`x [R, in]` (or `[R, heads, in]`) times the weight, `[R, out]` (`[R, heads, out]`), in x's type; sums in fp32 or wider.

    R is 1 to 32 (step path, run in tiles of 8) or exactly 64 (prompt tile), for a `RowMatrix` any number; else ValueError."""
    if isinstance(packed, RowMatrix):
        return rows.linear(x, packed)
    count = x.shape[0]
    if x.is_cuda and count > PROMPT_ROWS:
        return torch.cat([linear(part, packed) for part in x.split(PROMPT_ROWS)])
    if host_rows.runs(x):
        values = host_rows.array(x)
        if values.ndim == 2:
            return host_rows.tensor(host.linear(values, packed))
        if 0 < count <= MAX_STEP_ROWS:
            return host_rows.tensor(host.head_linear(values, packed.weight))
    padded, tile = packed.call(count)
    if padded > count:
        # exact: rows do not see each other, so the rows behind may hold what the last call left there.
        held, part = _spare.rows(padded, x)
        part.copy_(x)
        return _product(held, packed, tile)[:count]
    return _product(x, packed, tile)


def _product(x: Tensor, packed: Packed, tile: int) -> Tensor:
    return ref.linear(x, packed.weight, tile) if x.dim() == 2 else ref.head_linear(x, packed.weight, tile)


class _Spare(threading.local):
    """Zero-filled tensors to pad rows in, and the part of each that is filled; one set a thread."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, torch.Size, torch.dtype, torch.device | None], tuple[Tensor, Tensor]] = {}

    def rows(self, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        shape = like.shape
        key = (count, shape, like.dtype, None if like.is_cpu else like.device)
        found = self._held.get(key)
        if found is None:
            # A tensor of inference mode could not be written outside it.
            with torch.inference_mode(False):
                held = torch.zeros(count, *shape[1:], dtype=like.dtype, device=like.device)
            found = self._held[key] = (held, held[: shape[0]])
        return found


_spare = _Spare()


def batched(a: Tensor, b: Tensor) -> Tensor:
    """`[B, m, k] x [B, k, n]`, the bits of each product independent of B and of its place."""
    return ref.batched(a, b)
