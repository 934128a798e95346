"""Pooling, scoring and selection for a few fp32 rows through NumPy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def pool_keys(source: Tensor, index: Tensor, position_bias: Tensor) -> Tensor:
    """See `indexer.pool_keys`."""
    members = source.numpy().take(index.numpy(), 0)
    width = members.shape[2] // 2
    share = members[..., width:] + position_bias.numpy()
    share -= np.maximum.reduce(share, 1, keepdims=True)
    np.exp(share, share)
    share /= np.add.reduce(share, 1, keepdims=True)
    share *= members[..., :width]
    return torch.from_numpy(np.add.reduce(share, 1))


def scores(query: Tensor, weight: Tensor, keys: Tensor, block: int) -> Tensor:
    """See `indexer.scores`. One product of one shape a row and block."""
    rows, factors, turned = query.numpy(), weight.numpy()[:, None], keys.numpy().T
    out = np.empty((len(rows), 1, turned.shape[1]), np.float32)
    for first in range(0, turned.shape[1], block):
        near = np.matmul(rows, turned[:, first : first + block])
        np.matmul(factors, np.maximum(near, np.float32(0.0), out=near), out[..., first : first + block])
    return torch.from_numpy(out[:, 0])


def replace_keys(keys: Tensor, rows: Tensor, chosen: Tensor, pool_places: Tensor, members: int) -> None:
    """See `indexer.replace_keys`."""
    places = pool_places.numpy().take(chosen.numpy())[:, :, None] * members + np.arange(members)
    places = places.reshape(len(places), -1)
    keys.numpy()[rows.numpy(), : places.shape[1]] = places


def select(values: Tensor, candidates: Tensor, count: int) -> Tensor:
    """See `indexer.select`. The cut value is the same however a library orders ties; the rest is counting."""
    scored = values.numpy()
    scored = np.where(np.arange(scored.shape[1]) < candidates.numpy(), scored, np.float32(-np.inf))
    cut = np.partition(scored, scored.shape[1] - count, 1)[:, scored.shape[1] - count, None]
    above, equal = scored > cut, scored == cut
    room = count - np.add.reduce(above, 1, keepdims=True, dtype=np.int64)
    chosen = above | (equal & (np.cumsum(equal, 1) <= room))
    return torch.from_numpy(chosen.nonzero()[1].reshape(-1, count))
