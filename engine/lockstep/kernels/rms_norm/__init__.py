"""Root-mean-square and layer norms, one row at a time. Knows the published rounding points, not which layer asks."""

from __future__ import annotations

from torch import Tensor

from lockstep.kernels.rms_norm import ref


def inverse_rms(x: Tensor, eps: Tensor) -> Tensor:
    """`1 / sqrt(mean(x^2) + eps)` over the last axis, fp32, last axis kept as 1. `eps` is a one-element fp32 tensor on x's device."""
    return ref.inverse_rms(x, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Statistics in fp32, result rounded to x's type, then times `weight` of that type (two roundings)."""
    return ref.rms_norm(x, weight, eps)


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: Tensor) -> Tensor:
    """`rms(x) * weight * sigmoid(gate)` in fp32 over the last axis, one rounding to gate's type. x and weight are fp32."""
    return ref.gated_rms_norm(x, weight, gate, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Mean and variance norm with bias over the last axis, in x's type with fp32 statistics."""
    return ref.layer_norm(x, weight, bias, eps)
