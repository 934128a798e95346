"""Rows as e4m3 values under one power of two each: activations of fp8 products, and rows of a token store. Knows no matrix and no page.

Row x has the smallest exponent e with max|x| <= 448 * 2^e; its codes are x / 2^e rounded to the nearest e4m3, ties to even. Powers of two
make every decoded value exact in bf16 and fp32, and a row's codes depend on that row only.
"""

import torch
from torch import Tensor

from lockstep.kernels.fp8 import ref

# A stored row ends with its exponent in one byte; the other 15 keep rows aligned for 16-byte loads.
TAIL_BYTES = 16


def encode(x: Tensor) -> tuple[Tensor, Tensor]:
    """Float `x [.., k]` to codes e4m3 `[.., k]` and exponents int8 `[..]`. A row of zeros has exponent -9.

    A row with a value that is not finite becomes not-a-number as a whole.
    """
    return ref.encode(x)


def decode(codes: Tensor, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """`codes * 2^exponents` in `dtype`, fp32 or bf16, without rounding."""
    return ref.decode(codes, exponents, dtype)


def rounded(x: Tensor) -> Tensor:
    """`x [.., k]` encoded and decoded again, same type."""
    return ref.decode(*ref.encode(x), x.dtype)


def row_store(shape: tuple[int, ...], width: int, device: torch.device | str) -> Tensor:
    """Storage for rows of `width` values, uint8 `[*shape, width + 16]`, all rows zero."""
    return torch.zeros(*shape, width + TAIL_BYTES, dtype=torch.uint8, device=device)


def write(store: Tensor, places: Tensor, rows: Tensor) -> None:
    """Put `rows [n, width]` at `places [n]` of one layer's store: as they are, or encoded if it is uint8."""
    store.index_copy_(0, places, ref.to_bytes(rows, TAIL_BYTES) if store.dtype == torch.uint8 else rows)


def read(store: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows at `places [n]` of one layer's store, `[n, width]` in `dtype`, which is the store's own if it is not uint8."""
    rows = store.index_select(0, places)
    return ref.from_bytes(rows, TAIL_BYTES, dtype) if store.dtype == torch.uint8 else rows
