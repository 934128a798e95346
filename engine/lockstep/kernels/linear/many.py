"""Dense products of many rows on a CUDA device: weights are expanded to bf16 once a call, the library multiplies. Knows no layer.

A row's bits must not depend on how many rows there are. So each shape is tried with every number of tiles, once a process, and rows are
padded to the next number that gives the bits of the most."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels import cuda, fp8

if TYPE_CHECKING:
    from lockstep.kernels.linear.rows import RowMatrix

SOURCE = Path(__file__).with_name("expand.cu")
FORMS = ("bf16", "fp8", "q4")
TILE, MOST = 64, 4096


def expand(matrix: "RowMatrix") -> Tensor:
    """Weights bf16 `[outputs, inputs]`; q4 values are rounded once, others exact."""
    out = torch.empty(matrix.outputs, matrix.inputs, dtype=torch.bfloat16, device=matrix.words.device)
    units = out.numel() // (16 * 64)
    kernel = cuda.load(SOURCE, {"K": matrix.inputs, "FORM": FORMS.index(matrix.form)}, out.device, {"expand": 0})["expand"]
    kernel(-(-units // 8), 256, (matrix.words, matrix.factors, out, units))
    return out


def linear(x: Tensor, parts: Sequence["RowMatrix"], limit: float | None = None) -> Tensor:
    """bf16 `[R, sum of outputs]` (`[R, heads, outputs]`) of bf16 rows `x [R, inputs]` (`[R, heads, inputs]`), any number of them.

    With a `limit` the outputs are gate and up, and their clamped SwiGLU comes back, `[R, outputs / 2]`."""
    if limit is not None:
        both = linear(x, parts)
        out = both.new_empty(len(x), both.shape[1] // 2)
        kernel = cuda.load(SOURCE, {"K": TILE, "FORM": 0}, x.device, {"swiglu": 0})["swiglu"]
        kernel(min(2048, -(-out.numel() // 2048)), 256, (both, out, len(x), out.shape[1], limit), True)
        return out
    if len(x) > MOST:
        return torch.cat([linear(part, parts) for part in x.split(MOST)])
    rounded = fp8.rounded(x.float()).bfloat16() if any(part.form == "fp8" for part in parts) else x
    expanded = [expand(part).view(part.heads, -1, part.inputs).transpose(1, 2) for part in parts]
    found = [product(rounded if part.form == "fp8" else x, weight) for part, weight in zip(parts, expanded, strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found, -1)


def product(x: Tensor, weight: Tensor, kind: torch.dtype = torch.bfloat16) -> Tensor:
    """`[R, inputs]` (`[R, heads, inputs]`) by `weight [heads, inputs, outputs]`, bf16, at most 4096 rows; out in `kind`."""
    rows, x = len(x), x.contiguous()
    padded = safe_rows(tuple(weight.shape), weight.stride(), x.device, kind)[-(-rows // TILE) * TILE]
    if padded > rows:
        x = torch.cat([x, x.new_zeros(padded - rows, *x.shape[1:])])
    return _multiply(x, weight, kind)[:rows]


def _multiply(x: Tensor, weight: Tensor, kind: torch.dtype) -> Tensor:
    if kind is torch.float32:
        return torch.mm(x, weight[0], out_dtype=kind)
    return torch.mm(x, weight[0]) if x.dim() == 2 else torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def pieces(weight: Tensor) -> Tensor:
    """fp32 `[outputs, inputs]` as the fewest bf16 matrices that add up to it, side by side, `[1, inputs, n outputs]`."""
    found, rest = [], weight
    while not found or (len(found) < 3 and bool(rest.any())):
        found.append(rest.bfloat16())
        rest = rest - found[-1].float()
    return torch.cat(found).T.unsqueeze(0)


def exact(x: Tensor, weight: Tensor, outputs: int) -> Tensor:
    """fp32 `[R, outputs]` of bf16 rows by what `pieces` made of fp32 weights: products are exact, sums fp32."""
    first, *rest = product(x, weight, torch.float32).split(outputs, 1)
    return sum(rest, first)


@cache
def safe_rows(shape: tuple[int, int, int], strides: tuple[int, ...], device: torch.device, kind: torch.dtype) -> dict[int, int]:
    """Rows of whole tiles -> the least number of rows whose product with such a weight has, row by row, the bits of that of the most."""
    draw = torch.Generator(device).manual_seed(0)
    make = lambda *size: torch.randn(*size, generator=draw, device=device).bfloat16()  # noqa: E731
    heads, inputs, _ = shape
    x = make(MOST, heads, inputs) if heads > 1 else make(MOST, inputs)
    weight = torch.empty_strided(shape, strides, dtype=x.dtype, device=device).copy_(make(*shape))
    whole, found, least = _multiply(x, weight, kind), {}, MOST
    for rows in range(MOST, 0, -TILE):
        # exact: another order of sums shows in one of some ten thousand rounded results; here are at least 64 times the outputs.
        least = rows if torch.equal(_multiply(x[:rows], weight, kind), whole[:rows]) else least
        found[rows] = least
    return found
