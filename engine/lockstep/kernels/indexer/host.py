"""Pooling, scoring and selection for a few fp32 rows through NumPy."""

import numpy as np
from torch import Tensor

from lockstep.kernels import host


def pool_keys(source: Tensor, index: Tensor, position_bias: Tensor) -> Tensor:
    members = host.array(source).take(host.array(index), 0)
    width = members.shape[2] // 2
    share = members[..., width:] + host.parameter(position_bias)
    share -= np.maximum.reduce(share, 1, keepdims=True)
    np.exp(share, share)
    share /= np.add.reduce(share, 1, keepdims=True)
    share *= members[..., :width]
    return host.tensor(np.add.reduce(share, 1))


def scores(query: Tensor, weight: Tensor, keys: Tensor, block: int) -> Tensor:
    """See `indexer.scores`. One product of one shape a row and block."""
    rows, factors, turned = host.array(query), host.array(weight)[:, None], host.array(keys).T
    out = np.empty((len(rows), 1, turned.shape[1]), np.float32)
    for first in range(0, turned.shape[1], block):
        near = np.matmul(rows, turned[:, first : first + block])
        np.matmul(factors, np.maximum(near, np.float32(0.0), out=near), out[..., first : first + block])
    return host.tensor(out[:, 0])


def replace_keys(keys: Tensor, rows: Tensor, chosen: Tensor, pool_places: Tensor, members: int) -> None:
    places = host.array(pool_places).take(host.array(chosen))[:, :, None] * members + np.arange(members)
    places = places.reshape(len(places), -1)
    host.array(keys)[host.array(rows), : places.shape[1]] = places


def select(values: Tensor, candidates: Tensor, count: int) -> Tensor:
    """See `indexer.select`. The cut value is the same however a library orders ties; the rest is counting."""
    scored = host.array(values)
    scored = np.where(np.arange(scored.shape[1]) < host.array(candidates), scored, np.float32(-np.inf))
    cut = np.partition(scored, scored.shape[1] - count, 1)[:, scored.shape[1] - count, None]
    above, equal = scored > cut, scored == cut
    room = count - np.add.reduce(above, 1, keepdims=True, dtype=np.int64)
    chosen = above | (equal & (np.cumsum(equal, 1) <= room))
    return host.tensor(chosen.nonzero()[1].reshape(-1, count))
