"""Sinkhorn normalisation on the CPU through NumPy: 39 tiny steps a site, where torch's price a call is twice as high."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def adders(streams: int, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Matrices `[h h + 1, h h]` that turn a flat mixing matrix and a 1 into its row sums + eps and its column sums + eps, spread out."""
    ones, eye = np.ones((streams, streams), np.float32), np.eye(streams, dtype=np.float32)
    last = np.full((1, streams * streams), eps, np.float32)
    return np.concatenate([np.kron(eye, ones), last]), np.concatenate([np.kron(ones, eye), last])


def sinkhorn(comb: Tensor, steps: tuple[np.ndarray, ...]) -> Tensor:
    """Divide `comb [R, h h]` by the sums each of `steps` gives, in turn. Returns a tensor of its own."""
    rows, size = comb.shape
    held = np.ones((rows, size + 1), np.float32)
    mix, sums = held[:, :size], np.empty((rows, size), np.float32)
    mix[...] = comb.numpy()
    dot, divide = np.dot, np.divide
    for step in steps:
        dot(held, step, sums)
        divide(mix, sums, mix)
    return torch.from_numpy(mix.copy())


def rows_are_independent(steps: tuple[np.ndarray, ...], counts: tuple[int, ...]) -> bool:
    """True if every row has the same bits among any of `counts` rows, at any place, as alone in the first count."""
    size = steps[0].shape[1]
    values = torch.rand(max(counts), size, generator=torch.Generator().manual_seed(0)) + 0.01
    whole = {count: sinkhorn(values[:count], steps) for count in counts}
    for row in range(max(counts)):
        alone = torch.ones(counts[0], size)
        alone[row % counts[0]] = values[row]
        found = sinkhorn(alone, steps)[row % counts[0]]
        if any(row < count and not torch.equal(whole[count][row], found) for count in counts):
            return False
    return True
