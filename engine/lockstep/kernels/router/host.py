"""Routing of a few fp32 rows through NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels import host


def route(logits: Tensor, correction: Tensor, count: int, factor: float) -> tuple[Tensor, Tensor]:
    """See `router.route`."""
    score = host.sigmoid(logits.numpy(), np.empty(logits.shape, np.float32))
    chosen = np.argsort(-(score + correction.numpy()), 1, kind="stable")[:, :count]
    weight = score[np.arange(len(score))[:, None], chosen]
    total = np.add.reduce(weight, 1, keepdims=True)
    total += np.float32(1e-20)
    weight /= total
    weight *= np.float32(factor)
    return torch.from_numpy(chosen), torch.from_numpy(weight)
