"""Dense products of a few rows on a CUDA device that read weights in the form they are stored in: bf16, 8 or 4 bits. Knows no layer.

A row's bits depend on the row and the matrix alone, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda, fp8
from lockstep.kernels.coded import CodedMatrix, Fp8Matrix, Q4Matrix

SOURCE = Path(__file__).with_name("rows.cu")
MOST_ROWS, TILE_ROWS, UNIT, STRIP = 32, 8, 64, 16
FORMS = ("bf16", "fp8", "q4")
# Two for each multiprocessor of the cards in mind.
_LEAST_BLOCKS = 264


@dataclass(frozen=True, slots=True)
class RowMatrix:
    """A matrix of `inputs` by `outputs`, packed; `factors` as `form` needs them: per output fp32, or per 64 inputs fp16, or none."""

    form: str
    inputs: int
    outputs: int
    words: Tensor
    factors: Tensor


def fits(inputs: int, outputs: int) -> bool:
    """True if a matrix of this shape can be packed."""
    return inputs % UNIT == 0 and outputs % STRIP == 0


def pack_bf16(weight: Tensor) -> RowMatrix:
    """From bf16 `[outputs, inputs]`."""
    words = _units(weight).permute(0, 3, 5, 2, 4, 6, 1, 7).contiguous()
    return RowMatrix("bf16", weight.shape[1], weight.shape[0], words, words.new_zeros(1, dtype=torch.float32))


def pack_fp8(codes: Tensor, exponents: Tensor) -> RowMatrix:
    """From e4m3 `codes [outputs, inputs]` and `exponents [outputs]`; see `kernels.fp8`."""
    words = _units(codes.view(torch.uint8)).permute(0, 3, 2, 4, 5, 6, 1, 7).contiguous()
    return RowMatrix("fp8", codes.shape[1], codes.shape[0], words, torch.exp2(exponents.float()))


def pack_q4(codes: Tensor, factors: Tensor) -> RowMatrix:
    """From `codes [outputs, inputs / 2]` and fp16 `factors [outputs, inputs / 64]`; see `kernels.coded`."""
    nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
    ordered = _units(nibbles).permute(0, 3, 2, 4, 5, 7, 6, 1).reshape(-1, 2)
    pairs = factors.view(-1, 2, 8, factors.shape[1]).permute(0, 3, 2, 1).contiguous()
    return RowMatrix("q4", nibbles.shape[1], nibbles.shape[0], ordered[:, 0] | ordered[:, 1] << 4, pairs)


def _units(values: Tensor) -> Tensor:
    """`[outputs, inputs]` as [strip, upper 8 outputs, output, unit of 64 inputs, 16 of them, 4 of these, upper 2, input]."""
    outputs, inputs = values.shape
    if not fits(inputs, outputs):
        raise ValueError(f"{inputs} inputs and {outputs} outputs; needed: multiples of {UNIT} and {STRIP}")
    return values.view(outputs // STRIP, 2, 8, inputs // UNIT, 4, 4, 2, 2)


def macros(form: str, inputs: int, outputs: int, rows: int, card: str) -> dict[str, int]:
    """What the source is compiled with. Only how work is laid out depends on the rows, and no bit of a row on that."""
    tiles = -(-rows // TILE_ROWS)
    wide = outputs % (2 * STRIP) == 0 and outputs >= 2 * STRIP * _LEAST_BLOCKS and tiles <= 2
    # The compiler needs more registers for the other cards; fewer blocks leave them.
    blocks = 2 if tiles == 1 or card == "sm_90" else 1
    return {"K": inputs, "N": outputs, "FORM": FORMS.index(form), "TILES": tiles, "STRIPS": 1 + wide, "BLOCKS": blocks}


def multiply(x: Tensor, matrix: RowMatrix, row_scales: Tensor | None = None) -> Tensor:
    """bf16 `[R, outputs]` of 1 to 32 rows `x [R, inputs]`, bf16; for an fp8 matrix e4m3 values as fp16, times `row_scales [R]` fp32.

    Raises ValueError for other types or numbers of rows.
    """
    wanted = torch.float16 if matrix.form == "fp8" else torch.bfloat16
    rows = x.shape[0]
    if x.dtype is not wanted or not 0 < rows <= MOST_ROWS or x.shape[1] != matrix.inputs or not x.is_contiguous():
        raise ValueError(f"{x.dtype} {tuple(x.shape)}; needed: {wanted} of 1 to {MOST_ROWS} rows of {matrix.inputs} in a row")
    found = macros(matrix.form, matrix.inputs, matrix.outputs, rows, cuda.target(x.device))
    kernel = cuda.load(SOURCE, found, x.device, {"rows_product": 0})["rows_product"]
    out = torch.empty(rows, matrix.outputs, dtype=torch.bfloat16, device=x.device)
    scales = matrix.factors if row_scales is None else row_scales
    kernel(matrix.outputs // (STRIP * found["STRIPS"]), 256, (matrix.words, matrix.factors, x, scales, out, rows), True)
    return out


def of_plain(weight: Tensor) -> RowMatrix | None:
    """A plain `[outputs, inputs]` matrix packed, if it lies on a CUDA device as bf16 and its shape allows."""
    allowed = weight.is_cuda and weight.dtype is torch.bfloat16 and weight.dim() == 2
    return pack_bf16(weight) if allowed and fits(weight.shape[1], weight.shape[0]) else None


def of_coded(matrices: Sequence[CodedMatrix]) -> RowMatrix | None:
    """Coded neighbours of one kind packed side by side, if they lie on a CUDA device and their shape allows."""
    codes = torch.cat([matrix.codes for matrix in matrices])
    inputs = codes.shape[1] * (2 if isinstance(matrices[0], Q4Matrix) else 1)
    if not codes.is_cuda or not fits(inputs, len(codes)):
        return None
    if isinstance(matrices[0], Fp8Matrix):
        return pack_fp8(codes, torch.cat([matrix.exponents for matrix in matrices if isinstance(matrix, Fp8Matrix)]))
    return pack_q4(codes, torch.cat([matrix.factors for matrix in matrices if isinstance(matrix, Q4Matrix)]))


def linear(x: Tensor, matrix: RowMatrix) -> Tensor:
    """bf16 `[R, outputs]` of any number of bf16 rows `x [R, inputs]`. Rows for an fp8 matrix take e4m3 form first, each by itself."""
    scales = None
    if matrix.form == "fp8":
        codes, exponents = fp8.encode(x.float())
        x, scales = codes.half(), torch.exp2(exponents.float())
    parts = [
        multiply(x[at : at + MOST_ROWS].contiguous(), matrix, None if scales is None else scales[at : at + MOST_ROWS].contiguous())
        for at in range(0, len(x), MOST_ROWS)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
