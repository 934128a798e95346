"""Linear layers as stored: plain, EXL3, or several that share an input. Knows nothing of what the outputs mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.kernels.exl3 import Exl3Matrix, rotate_input, rotate_output
from lockstep.kernels.linear import Packed, linear, pack
from lockstep.layers.params import Params


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


class Linear:
    """One or more matrices over the same input; outputs side by side. Plain neighbours are one product."""

    def __init__(self, matrices: Sequence[Exl3Matrix | Tensor]) -> None:
        self.parts: list[Packed | Exl3Linear] = []
        plain: list[Tensor] = []
        for matrix in (*matrices, None):
            if isinstance(matrix, Tensor):
                plain.append(matrix)
                continue
            if plain:
                self.parts.append(pack(torch.cat(plain)))
                plain = []
            if matrix is not None:
                self.parts.append(Exl3Linear.of(matrix))

    @classmethod
    def load(cls, params: Params, inputs: int, outputs: Mapping[str, int]) -> Linear:
        """The named modules of `params`, each with its number of outputs."""
        return cls([params.matrix(name, inputs, size) for name, size in outputs.items()])

    def __call__(self, x: Tensor) -> Tensor:
        """`x [R, inputs]` to `[R, sum of outputs]` in x's type."""
        out = [linear(x, part) if isinstance(part, Packed) else part(x) for part in self.parts]
        return out[0] if len(out) == 1 else torch.cat(out, -1)
