"""Arithmetic of a few fp32 rows on the CPU through NumPy, where a torch call costs more than its work. Knows no operation of the model.

Every operation here treats a row alone: elementwise functions, sums over the last axis, and one product of fixed shape a row. That this
library does so on this machine is looked at once (`trusted`); where it does not, the torch path runs on padded rows.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

_HELD = "held_by_numpy"
_WIDTHS = (4, 24, 32, 100, 256)
_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 31, 32)


def runs(x: Tensor) -> bool:
    """True if operations on `x` and its like run here."""
    return x.is_cpu and x.dtype is torch.float32 and trusted()


def array(x: Tensor) -> Array:
    """The same memory for NumPy."""
    held = getattr(x, _HELD, None)
    return x.numpy() if held is None else held


def tensor(values: Array) -> Tensor:
    """The same memory for torch. The tensor remembers `values`, since asking a tensor for its memory costs as much as small arithmetic."""
    made = torch.from_numpy(values)
    setattr(made, _HELD, values)
    return made


def parameter(x: Tensor) -> Array:
    """As `array`, remembered from the first time on: for tensors that live as long as the model."""
    held = getattr(x, _HELD, None)
    if held is None:
        held = x.numpy()
        setattr(x, _HELD, held)
    return held


def padded(rows: int, like: Tensor, tile: int) -> int:
    """Rows a pass over `rows` rows of a type like `like` must have: whole tiles where torch runs elementwise, since vector code there
    may treat the last values of an array differently."""
    return rows if runs(like) else -(-rows // tile) * tile


def sigmoid(x: Array) -> Array:
    """`1 / (1 + exp(-x))`."""
    return share(np.negative(x))


def share(x: Array, of: Array | float = 1.0) -> Array:
    """`of / (1 + exp(x))` in place. A large x becomes infinity on the way to 0; passes over the model keep NumPy quiet about that."""
    np.exp(x, x)
    x += 1.0
    return np.divide(of, x, x)


def silu(x: Array) -> Array:
    """`x sigmoid(x)`."""
    return share(np.negative(x), x)


def unit(x: Array, eps: float, scale: float) -> Array:
    """`x / sqrt(scale sum(x^2) + eps)` over the last axis of `x [R, H, d]`."""
    square = np.vecdot(x, x)
    square *= scale
    square += eps
    np.sqrt(square, square)
    return x / square[..., None]


def inverse_length(x: Array, eps: float, scale: float) -> Array | float:
    """`1 / sqrt(scale sum(x^2) + eps)` over the last axis, kept as 1; a plain number for a single row."""
    if x.size == x.shape[-1]:
        flat = x.reshape(-1)
        return 1.0 / math.sqrt(float(flat.dot(flat)) * scale + eps)
    # exact: in float64, in which Python computes the same for a single row.
    square = np.vecdot(x, x).astype(np.float64)
    square *= scale
    square += eps
    np.sqrt(square, square)
    return np.reciprocal(square, square).astype(np.float32)[..., None]


def softmax(x: Array) -> Array:
    """Over the last axis, in place."""
    x -= np.maximum.reduce(x, -1, keepdims=True)
    np.exp(x, x)
    x /= np.add.reduce(x, -1, keepdims=True)
    return x


@cache
def trusted() -> bool:
    """True if every building block gives a row the same bits among 1 to 32 rows, at any place, as alone."""
    draw = np.random.default_rng(0)
    rows = [draw.standard_normal((max(_COUNTS), width), np.float32) for width in _WIDTHS]
    return all(rows_are_independent(block, of) for block in _BLOCKS for of in rows)


def rows_are_independent(block: Callable[[Array], Array], rows: Array) -> bool:
    """True if `block` maps each row of `rows [32, ..]`, or of 64, to the same bits in every company that is tried."""
    alone = [block(row[None].copy()) for row in rows]
    for count in (*_COUNTS, len(rows)):
        for first in {0, 1, len(rows) - count} & set(range(len(rows) - count + 1)):
            found = block(rows[first : first + count].copy())
            if found.tobytes() != b"".join(part.tobytes() for part in alone[first : first + count]):
                return False
    return True


def _product(x: Array) -> Array:
    weight = np.linspace(-1, 1, x.shape[1] * 32, dtype=np.float32).reshape(x.shape[1], 32)
    return np.matmul(x[:, None], np.broadcast_to(weight, (len(x), *weight.shape)))[:, 0]


def _own_product(x: Array) -> Array:
    """Products whose both sides differ from row to row, as a matrix and transposed."""
    grid = np.multiply(x[:, :, None], x[:, None, :4])
    return np.matmul(np.matmul(grid.transpose(0, 2, 1), grid), grid.transpose(0, 2, 1))


_BLOCKS: tuple[Callable[[Array], Array], ...] = (
    sigmoid,
    silu,
    softmax,
    lambda x: x * inverse_length(x, 1e-5, 1 / x.shape[1]),
    lambda x: unit(x.reshape(len(x), 2, -1), 1e-5, 1.0),
    lambda x: np.add.reduce(x.reshape(len(x), 4, -1), 1),
    _product,
    _own_product,
)
