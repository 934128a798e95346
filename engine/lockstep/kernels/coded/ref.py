"""Plain PyTorch coding of 4-bit groups."""

import torch
from torch import Tensor

GROUP = 64
_LOWEST, _HIGHEST = -8, 7
# The largest magnitude lands on 7 to 10.5, or its negative on -8 to -11.5, before values are cut: the far ends clip it for finer steps.
_DIVISORS = tuple(7 + step / 2 for step in range(8)) + tuple(-8 - step / 2 for step in range(8))
_ROWS_AT_ONCE = 4096


def encode_q4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [n, k / 2] and factors fp16 [n, k / 64] of `weight [n, k]`."""
    parts = [_encode(rows.float().unflatten(1, (-1, GROUP))) for rows in weight.split(_ROWS_AT_ONCE)]
    values, factors = (torch.cat(kind) for kind in zip(*parts, strict=True))
    shifted = (values - _LOWEST).to(torch.uint8).flatten(1)
    return shifted[:, 0::2] | (shifted[:, 1::2] << 4), factors


def _encode(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Values int8 [n, g, 64] and factors fp16 [n, g] of `groups` fp32 [n, g, 64]."""
    largest = groups.abs().amax(-1, keepdim=True)
    best = torch.full_like(largest, torch.inf, dtype=torch.float64)
    values, factors = torch.zeros_like(groups), torch.zeros_like(largest, dtype=torch.float16)
    for divisor in _DIVISORS:
        factor = (largest / divisor).half()
        # A factor that rounds to zero would divide by it; its group is all zeros, or too small for fp16.
        step = torch.where(factor == 0, 1, factor.float())
        tried = (groups / step).round_().clamp_(_LOWEST, _HIGHEST)
        error = (tried.double() * factor.double() - groups.double()).square().sum(-1, keepdim=True)
        better = error < best
        best, factors = torch.where(better, error, best), torch.where(better, factor, factors)
        values = torch.where(better, tried, values)
    return values.to(torch.int8), factors.squeeze(-1)


def decode_q4(codes: Tensor, factors: Tensor) -> Tensor:
    """Weights fp32 [n, k]; a 4-bit whole number times an fp16 factor needs 15 bits of 24."""
    values = torch.stack([codes & 15, codes >> 4], -1).flatten(1).int() + _LOWEST
    return (values.unflatten(1, (-1, GROUP)) * factors.float().unsqueeze(-1)).flatten(1)
