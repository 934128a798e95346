"""Norms of a few fp32 rows through NumPy."""

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels import host
from lockstep.kernels.host import Array


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return host.tensor(rms_norm_rows(host.array(x), weight, eps))


def rms_norm_rows(values: Array, weight: Tensor, eps: float) -> Array:
    """The same for an array."""
    out = values * host.inverse_length(values, eps, 1.0 / values.shape[-1])
    out *= host.parameter(weight)
    return out


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    out = host.unit(host.array(x), eps, 1.0 / x.shape[-1])
    out *= host.parameter(weight)
    out *= host.sigmoid(host.array(gate))
    return torch.from_numpy(out)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    values = host.array(x)
    centred = values - np.add.reduce(values, -1, keepdims=True) / np.float32(values.shape[-1])
    out = centred * host.inverse_length(centred, eps, 1.0 / values.shape[-1])
    out *= host.parameter(weight)
    out += host.parameter(bias)
    return torch.from_numpy(out)
