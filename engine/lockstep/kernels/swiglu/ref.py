"""Plain PyTorch clamped SwiGLU."""

import torch
from torch import Tensor


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """See `swiglu.swiglu`. The gate has no lower clamp."""
    return torch.nn.functional.silu(gate.clamp(max=limit)).mul_(up.clamp(-limit, limit))
