"""Linear layers as stored or coded: plain, EXL3, fp8, q4, or several that share an input. Knows nothing of what the outputs mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import torch
from torch import Tensor

from lockstep.kernels import fp8
from lockstep.kernels.coded import CodedMatrix, Fp8Matrix, Q4Matrix
from lockstep.kernels.exl3 import Exl3Matrix, rotate_input, rotate_output
from lockstep.kernels.linear import Packed, RowMatrix, linear, pack, pack_rows, rows
from lockstep.kernels.swiglu import swiglu_pair
from lockstep.layers.params import Matrix, Params


@dataclass(frozen=True, slots=True)
class Exl3Linear:
    """An EXL3 matrix with its inner weight decoded to fp32 and its scales in fp16."""

    inner: Packed
    suh: Tensor
    svh: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, matrix: Exl3Matrix) -> Exl3Linear:
        """Decode `matrix` on its device."""
        return cls(pack(matrix.inner().float().T), matrix.suh, matrix.svh, matrix.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """`[R, k]` to `[R, n]` in x's type."""
        y = rotate_output(linear(rotate_input(x, self.suh).float(), self.inner), self.svh)
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)


@dataclass(frozen=True, slots=True)
class CodedLinear:
    """Coded neighbours of one kind, decoded to fp32. `rounds_input`: rows of the input take e4m3 form first, each by itself."""

    weight: Packed
    rounds_input: bool

    @classmethod
    def of(cls, matrices: Sequence[CodedMatrix]) -> CodedLinear:
        """Outputs side by side."""
        return cls(pack(torch.cat([matrix.decoded() for matrix in matrices])), isinstance(matrices[0], Fp8Matrix))

    def __call__(self, x: Tensor) -> Tensor:
        """`[R, k]` to `[R, n]` in x's type, rounded once."""
        given = x.float()
        return linear(fp8.rounded(given) if self.rounds_input else given, self.weight).to(x.dtype)


class Linear:
    """One or more matrices over the same input; outputs side by side. Neighbours of one kind are one product, EXL3 apart."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.parts: list[Packed | RowMatrix | Exl3Linear | CodedLinear] = []
        for kind, group in groupby(matrices, type):
            alike = list(group)
            if kind is Exl3Matrix:
                self.parts += [Exl3Linear.of(matrix) for matrix in cast(list[Exl3Matrix], alike)]
            elif kind in (Fp8Matrix, Q4Matrix):
                coded = cast(list[CodedMatrix], alike)
                self.parts.append(rows.of_coded(coded) or CodedLinear.of(coded))
            else:
                self.parts.append(pack_rows(torch.cat(cast(list[Tensor], alike))))
        self.single = self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], Packed) else None
        packed = [part for part in self.parts if isinstance(part, RowMatrix)]
        self.joined = packed if len(packed) == len(self.parts) <= rows.MOST_PARTS else None

    @classmethod
    def load(cls, params: Params, inputs: int, outputs: Mapping[str, int]) -> Linear:
        """The named modules of `params`, each with its number of outputs."""
        return cls([params.matrix(name, inputs, size) for name, size in outputs.items()])

    def __call__(self, x: Tensor) -> Tensor:
        """`x [R, inputs]` to `[R, sum of outputs]` in x's type."""
        if self.single is not None:
            return linear(x, self.single)
        if self.joined is not None:
            return rows.linear(x, *self.joined)
        out = [linear(x, part) if isinstance(part, Packed | RowMatrix) else part(x) for part in self.parts]
        return out[0] if len(out) == 1 else torch.cat(out, -1)

    def into(self, out: Tensor, x: Tensor) -> None:
        """The same of at most 32 rows, written to `out`."""
        if self.joined is None:
            out.copy_(self(x))
        else:
            rows.product(x, self.joined, out=out)

    def swiglu(self, x: Tensor, limit: float) -> Tensor:
        """The clamped SwiGLU of gate and up side by side, `[R, sum of outputs / 2]`."""
        if self.joined is not None and len(self.joined) == 1 and self.joined[0].outputs % (4 * rows.STRIP) == 0:
            return rows.linear(x, self.joined[0], limit=limit)
        return swiglu_pair(self(x), limit)
