"""The activation for a few fp32 rows through NumPy."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from lockstep.kernels import host


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """See `swiglu.swiglu`."""
    bound = np.float32(limit)
    out = host.silu(np.minimum(host.array(gate), bound))
    side = np.minimum(host.array(up), bound)
    out *= np.maximum(side, -bound, out=side)
    return host.tensor(out)
