"""Routing of a few fp32 rows through NumPy."""

import numpy as np
from torch import Tensor

from lockstep.kernels import host

_TINY = np.float32(1e-20)


def route(logits: Tensor, correction: Tensor, count: int, factor: float) -> tuple[Tensor, Tensor]:
    score = host.sigmoid(host.array(logits))
    order = score + host.parameter(correction)
    chosen = np.negative(order, order).argsort(1, kind="stable")[:, :count]
    weight = score[np.arange(len(score))[:, None], chosen]
    total = np.add.reduce(weight, 1, keepdims=True)
    total += _TINY
    weight /= total
    weight *= factor
    return host.tensor(chosen), host.tensor(weight)
