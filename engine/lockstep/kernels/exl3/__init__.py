"""EXL3 matrices: one stored matrix as a value, its layout asserted once, and the public calls on it.

Knows nothing of checkpoints or of what a matrix is used for. `ref.py` is the plain truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.kernels.exl3 import ref
from lockstep.kernels.exl3.ref import CODEBOOKS, HADAMARD, MULTIPLIERS, TILE, WIDTHS, decode_outer, rotate_input, rotate_output

__all__ = ["CODEBOOKS", "HADAMARD", "MULTIPLIERS", "TILE", "WIDTHS", "Exl3Matrix"]
__all__ += ["decode_outer", "rotate_input", "rotate_output"]


@dataclass(frozen=True, slots=True)
class Exl3Matrix:
    """y = x W with k inputs and n outputs. `trellis` int16 [k/16, n/16, 16 * bits], `suh` fp16 [k], `svh` fp16 [n], `bias` fp16 [n].

    It has `bits` a weight. The layout is checked here, once. Raises ValueError saying what was found and what is needed.
    """

    trellis: Tensor
    suh: Tensor
    svh: Tensor
    codebook: str
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        if self.trellis.dtype != torch.int16 or self.trellis.ndim != 3:
            raise ValueError(f"trellis: found {self.trellis.dtype} with {self.trellis.ndim} axes, needed int16 with 3")
        if self.codebook not in CODEBOOKS:
            raise ValueError(f"codebook: found {self.codebook!r}, needed one of {', '.join(CODEBOOKS)}")
        if self.bits not in WIDTHS:
            raise ValueError(f"trellis: found a last axis of {self.trellis.shape[-1]}, needed 16 times one of {WIDTHS}")
        if self.bits % 1 and self.codebook != "mul1":
            raise ValueError(f"trellis: found {self.bits} bits with codebook {self.codebook}, half widths need mul1")
        if self.k % HADAMARD or self.n % HADAMARD:
            raise ValueError(f"trellis: found {self.k} inputs and {self.n} outputs, needed multiples of {HADAMARD}")
        for label, tensor, size in (("suh", self.suh, self.k), ("svh", self.svh, self.n), ("bias", self.bias, self.n)):
            if tensor is None:
                continue
            if tensor.dtype != torch.float16 or tuple(tensor.shape) != (size,):
                raise ValueError(f"{label}: found {tensor.dtype} {tuple(tensor.shape)}, needed torch.float16 ({size},)")

    @property
    def bits(self) -> float:
        return self.trellis.shape[-1] / 16

    @property
    def k(self) -> int:
        return self.trellis.shape[0] * TILE

    @property
    def n(self) -> int:
        return self.trellis.shape[1] * TILE

    def inner(self) -> Tensor:
        """Wq, fp16 [k, n]: the weight between the two rotations."""
        return ref.decode_inner(self.trellis, self.codebook)

    def to(self, device: torch.device | str) -> Exl3Matrix:
        bias = None if self.bias is None else self.bias.to(device)
        return Exl3Matrix(self.trellis.to(device), self.suh.to(device), self.svh.to(device), self.codebook, bias)
