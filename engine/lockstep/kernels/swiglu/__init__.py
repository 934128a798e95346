"""The clamped SwiGLU activation. Knows no projection."""

from __future__ import annotations

from torch import Tensor

from lockstep.kernels.swiglu import ref


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """`SiLU(min(gate, limit)) * clamp(up, -limit, limit)`, `[.., F]`, from gate and up side by side `[.., 2 F]`, in their type."""
    return ref.swiglu(gate_up, limit)
