"""Root-mean-square and layer norms, one row at a time. Knows the published rounding points, not which layer asks."""

import torch
from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.rms_norm import fused, host, ref


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(mean(x^2) + eps)` over the last axis, fp32, last axis kept as 1."""
    return ref.inverse_rms(x, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Statistics in fp32, result rounded to x's type, then times `weight` of that type (two roundings)."""
    if fused.runs(x, weight, torch.bfloat16):
        return fused.rms_norm(x, weight, eps)
    return host.rms_norm(x, weight, eps) if host_rows.runs(x) else ref.rms_norm(x, weight, eps)


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """`rms(x) * weight * sigmoid(gate)` in fp32 over the last axis, one rounding to gate's type. x and weight are fp32."""
    if fused.runs(x, weight, torch.float32) and gate.dtype is torch.bfloat16:
        return fused.gated_rms_norm(x, weight, gate, eps)
    return host.gated_rms_norm(x, weight, gate, eps) if host_rows.runs(gate) else ref.gated_rms_norm(x, weight, gate, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Mean and variance norm with bias over the last axis, in x's type with fp32 statistics."""
    return host.layer_norm(x, weight, bias, eps) if host_rows.runs(x) else ref.layer_norm(x, weight, bias, eps)
