"""Matrices of linear layers in 8 or 4 bits, made from plain ones at load, and what a product with them is. Knows no checkpoint.

fp8: each output's weights are one e4m3 row (`kernels.fp8`), and each row of the input is rounded the same way before the product.
q4: whole numbers of -8 to 7 under one fp16 factor for 64 inputs of an output; inputs are not rounded. Products are sums in fp32 of
decoded values. `decoded` weights are fp32 [n, k], exact; they stay in memory here, kernels read the codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.kernels import fp8
from lockstep.kernels.coded import ref
from lockstep.kernels.coded.ref import GROUP

__all__ = ["GROUP", "CodedMatrix", "Fp8Matrix", "Q4Matrix", "encode_fp8", "encode_q4"]


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """k inputs, n outputs: `codes` e4m3 [n, k], `exponents` int8 [n]."""

    codes: Tensor
    exponents: Tensor

    def to(self, device: torch.device | str) -> Fp8Matrix:
        return Fp8Matrix(self.codes.to(device), self.exponents.to(device))

    def outputs(self, start: int, count: int) -> Fp8Matrix:
        return Fp8Matrix(self.codes.narrow(0, start, count), self.exponents.narrow(0, start, count))

    def inputs(self, start: int, count: int) -> Fp8Matrix:
        """What some of the inputs add; exponents stay those of the whole matrix."""
        return Fp8Matrix(self.codes.narrow(1, start, count).contiguous(), self.exponents)

    def decoded(self) -> Tensor:
        return fp8.decode(self.codes, self.exponents, torch.float32)


@dataclass(frozen=True, slots=True)
class Q4Matrix:
    """k inputs, n outputs: `codes` uint8 [n, k / 2], input 2 i in the low half of byte i, each value plus 8; `factors` fp16 [n, k / 64]."""

    codes: Tensor
    factors: Tensor

    def to(self, device: torch.device | str) -> Q4Matrix:
        return Q4Matrix(self.codes.to(device), self.factors.to(device))

    def outputs(self, start: int, count: int) -> Q4Matrix:
        return Q4Matrix(self.codes.narrow(0, start, count), self.factors.narrow(0, start, count))

    def inputs(self, start: int, count: int) -> Q4Matrix:
        """What some of the inputs add. Raises ValueError if a group of 64 would be cut."""
        if start % GROUP or count % GROUP:
            raise ValueError(f"inputs {start} to {start + count} of a q4 matrix; needed: multiples of {GROUP}")
        codes = self.codes.narrow(1, start // 2, count // 2).contiguous()
        return Q4Matrix(codes, self.factors.narrow(1, start // GROUP, count // GROUP).contiguous())

    def decoded(self) -> Tensor:
        return ref.decode_q4(self.codes, self.factors)


CodedMatrix = Fp8Matrix | Q4Matrix


def encode_fp8(weight: Tensor) -> Fp8Matrix:
    """From plain `weight [n, k]`."""
    return Fp8Matrix(*fp8.encode(weight))


def encode_q4(weight: Tensor) -> Q4Matrix:
    """From plain `weight [n, k]`: of 16 factors a group, the first with the smallest sum of squared errors. k is a multiple of 64."""
    if weight.shape[1] % GROUP:
        raise ValueError(f"{weight.shape[1]} inputs; needed: a multiple of {GROUP} for q4")
    return Q4Matrix(*ref.encode_q4(weight))
