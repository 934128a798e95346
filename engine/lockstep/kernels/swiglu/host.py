"""The activation for a few fp32 rows through NumPy."""

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels import host
from lockstep.kernels.host import Array
from lockstep.kernels.linear import Packed
from lockstep.kernels.linear.host import linear


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return torch.from_numpy(swiglu_rows(host.array(gate), host.array(up), limit))


def swiglu_pair(both: Tensor, limit: float) -> Tensor:
    return torch.from_numpy(_pair(host.array(both), limit))


def swiglu_between(x: Tensor, gate_up: Packed, down: Packed, limit: float) -> Tensor:
    return host.tensor(linear(_pair(linear(host.array(x), gate_up), limit), down))


def _pair(values: Array, limit: float) -> Array:
    width = values.shape[-1] // 2
    return swiglu_rows(values[..., :width], values[..., width:], limit)


def swiglu_rows(gate: Array, up: Array, limit: float) -> Array:
    """The same for arrays `[R, F]`."""
    out = host.silu(np.minimum(gate, limit))
    side = np.minimum(up, limit)
    out *= np.maximum(side, -limit, out=side)
    return out
