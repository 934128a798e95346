"""The clamped SwiGLU activation. Knows no projection."""

from __future__ import annotations

from torch import Tensor

from lockstep.kernels.swiglu import ref


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """`SiLU(min(gate, limit)) * clamp(up, -limit, limit)`, same shape and type as both."""
    return ref.swiglu(gate, up, limit)
