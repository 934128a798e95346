"""Plain PyTorch e4m3 rows. Every operation is exact or rounds each value by itself, so no vector width can show."""

import torch
from torch import Tensor

_E4M3 = torch.float8_e4m3fn
# 448 = 0.875 * 2^9 is the largest e4m3 value.
_TOP_MANTISSA, _TOP_EXPONENT = 0.875, 9
_LOW, _HIGH, _BIAS, _MANTISSA_BITS = -126, 127, 127, 23


def encode(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    mantissa, exponent = torch.frexp(largest)
    exponent = (exponent - _TOP_EXPONENT + (mantissa > _TOP_MANTISSA)).clamp_(_LOW, _HIGH)
    # e4m3 has no infinity and a cast may cut it to 448; a row that overflowed must not look sound.
    codes = (x / _power(exponent).masked_fill_(~largest.isfinite(), torch.nan)).to(_E4M3)
    return codes, exponent.squeeze(-1).to(torch.int8)


def decode(codes: Tensor, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    return (codes.float() * _power(exponents.int().unsqueeze(-1))).to(dtype)


def _power(exponent: Tensor) -> Tensor:
    # exact: built from bits; a library's power function may be off by a bit.
    return ((exponent.int() + _BIAS) << _MANTISSA_BITS).view(torch.float32)


def to_bytes(rows: Tensor, tail: int) -> Tensor:
    """`rows [n, k]` to uint8 `[n, k + tail]`: codes, exponent, zeros."""
    codes, exponents = encode(rows)
    out = codes.new_zeros(*codes.shape[:-1], codes.shape[-1] + tail, dtype=torch.uint8)
    out[..., : codes.shape[-1]] = codes.view(torch.uint8)
    out[..., codes.shape[-1]] = exponents.view(torch.uint8)
    return out


def from_bytes(stored: Tensor, tail: int, dtype: torch.dtype) -> Tensor:
    """The other way round."""
    width = stored.shape[-1] - tail
    return decode(stored[..., :width].view(_E4M3), stored[..., width].view(torch.int8), dtype)
