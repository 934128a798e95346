"""Norms of a few fp32 rows through NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels import host


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `rms_norm.rms_norm`."""
    values = x.numpy()
    out = values * host.inverse_length(values, eps, 1.0 / values.shape[-1])
    out *= weight.numpy()
    return torch.from_numpy(out)


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """See `rms_norm.gated_rms_norm`."""
    out = host.unit(x.numpy(), eps, 1.0 / x.shape[-1])
    out *= weight.numpy()
    out *= host.sigmoid(gate.numpy())
    return torch.from_numpy(out)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See `rms_norm.layer_norm`."""
    values = x.numpy()
    centred = values - np.add.reduce(values, -1, keepdims=True) / np.float32(values.shape[-1])
    out = centred * host.inverse_length(centred, eps, 1.0 / values.shape[-1])
    out *= weight.numpy()
    out += bias.numpy()
    return torch.from_numpy(out)
