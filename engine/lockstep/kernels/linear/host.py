"""Products of a few fp32 rows between NumPy arrays. The library that multiplies is torch's, which has its rows compared (`ref`)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels import host
from lockstep.kernels.host import Array
from lockstep.kernels.linear import ref

if TYPE_CHECKING:
    from lockstep.kernels.linear import Packed


class _Spare(threading.local):
    """Rows to pad a product in, by (rows, inputs): for torch, and the same memory for NumPy. One set a thread."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], tuple[Tensor, Array]] = {}


_spare = _Spare()


def linear(x: Array, packed: Packed) -> Array:
    rows, inputs = x.shape
    padded, tile = packed.call(rows)
    if padded == rows:
        given = torch.from_numpy(x)
    else:
        given, values = _spare.held.get((padded, inputs)) or _spare.held.setdefault((padded, inputs), _pair(padded, inputs))
        # exact: rows do not see each other, so the rows behind may hold what the last call left there.
        values[:rows] = x
    found = torch.mm(given, packed.weight) if tile == padded else ref.linear(given, packed.weight, tile)
    return found.numpy() if padded == rows else found.numpy()[:rows]


def _pair(rows: int, inputs: int) -> tuple[Tensor, Array]:
    values = np.zeros((rows, inputs), np.float32)
    return torch.from_numpy(values), values


def head_linear(x: Array, weight: Tensor) -> Array:
    """`[R, heads, in] x [heads, in, out] -> [R, heads, out]`, one product of one shape a row and head."""
    return np.matmul(x[:, :, None], host.parameter(weight))[:, :, 0]
