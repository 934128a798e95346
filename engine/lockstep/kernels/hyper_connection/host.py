"""Hyper-connection mixes of a few fp32 rows through NumPy, above all 39 tiny normalisation steps a site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lockstep.kernels import host
from lockstep.kernels.host import Array
from lockstep.kernels.linear import Packed
from lockstep.kernels.linear.host import linear
from lockstep.kernels.rms_norm.host import rms_norm_rows

_ONE = np.float32(1.0)
# Those of a prompt tile.
MOST_ROWS = 64


@dataclass(frozen=True, slots=True)
class HostSite:
    """A site for NumPy: `fn` with the site's scales in it, `base [h (h + 2)]`, both negative where pre and post come from.

    `gain [2, 1]` is that of pre and post.
    """

    fn: Packed
    base: Array
    gain: Array
    eps: np.float32
    norm_eps: float
    steps: Steps


@dataclass(frozen=True, slots=True)
class Steps:
    """What the sinkhorn steps divide by, as matrices over a flat mixing matrix and a 1 behind it.

    `first` gives row sums, `others` column and row sums + eps in turn, each as `[h h + 1, h h]` and transposed. `together` is False where a
    product over many rows has other bits than one over a single row.
    """

    first: tuple[Array, Array]
    others: tuple[tuple[Array, Array], ...]
    eps: float
    together: bool = True


def steps(streams: int, eps: float, sinkhorn: int) -> Steps:
    """Steps of a site with h `streams` and `sinkhorn` column normalisations."""
    ones, eye = np.ones((streams, streams), np.float32), np.eye(streams, dtype=np.float32)

    def adder(sums: Array, last: float) -> tuple[Array, Array]:
        whole = np.concatenate([sums, np.full((1, streams * streams), last, np.float32)])
        return whole, np.ascontiguousarray(whole.T)

    rows, columns = adder(np.kron(eye, ones), eps), adder(np.kron(ones, eye), eps)
    return Steps(adder(np.kron(eye, ones), 0.0), (columns, rows) * (sinkhorn - 1) + (columns,), eps)


def split(streams: Tensor, at: HostSite) -> tuple[Tensor, Tensor, Tensor]:
    """Branch input, post and comb of `streams [R, h, D]`."""
    u, post, comb = _split(host.array(streams), at)
    return host.tensor(u), host.tensor(post), host.tensor(comb)


def split_normed(streams: Tensor, at: HostSite, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    u, post, comb = _split(host.array(streams), at)
    return host.tensor(rms_norm_rows(u, weight, eps)), host.tensor(post), host.tensor(comb)


def _split(values: Array, at: HostSite) -> tuple[Array, Array, Array]:
    rows, count, width = values.shape
    flat = values.reshape(rows, -1)
    mixed = linear(flat, at.fn)
    mixed *= host.inverse_length(flat, at.norm_eps, 1.0 / flat.shape[1])
    mixed += at.base
    parts = mixed.reshape(rows, count + 2, count)
    comb = parts[:, 2:]
    comb -= np.maximum.reduce(comb, -1, keepdims=True)
    np.exp(parts, parts)
    gates = parts[:, :2] + _ONE
    np.divide(at.gain, gates, gates)
    gates[:, 0] += at.eps
    comb = sinkhorn(comb, at.steps)
    u = np.matmul(gates[:, :1], values)
    return u.reshape(rows, width), gates[:, 1], comb


def sinkhorn(comb: Array, at: Steps) -> Array:
    """Divide `comb [R, h, h]`, not negative, by its row sums, add eps, then divide by what each step gives. Takes comb as scratch."""
    rows, count, _ = comb.shape
    size = count * count
    divide, eps = np.divide, np.float32(at.eps)
    if rows > 1 and not at.together:
        return np.concatenate([sinkhorn(row[None], at) for row in comb])
    if rows == 1:
        held, sums = np.empty(size + 1, np.float32), np.empty(size, np.float32)
        held[size] = 1.0
        mix = held[:size]
        mix[...] = comb.reshape(size)
        dot = held.dot
        divide(mix, dot(at.first[0], sums), mix)
        np.add(mix, eps, mix)
        for step, _ in at.others:
            divide(mix, dot(step, sums), mix)
        return mix.reshape(comb.shape)
    # One row of a column each, so that every step is one run over memory.
    held, sums = np.ones((size + 1, rows), np.float32), np.empty((size, rows), np.float32)
    mix = held[:size]
    mix[...] = comb.reshape(rows, size).T
    divide(mix, at.first[1].dot(held, sums), mix)
    np.add(mix, eps, mix)
    for _, step in at.others:
        divide(mix, step.dot(held, sums), mix)
    return np.ascontiguousarray(mix.T).reshape(comb.shape)


def merge(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    mixed = np.matmul(host.array(comb).transpose(0, 2, 1), host.array(streams))
    mixed += host.array(post)[:, :, None] * host.array(branch)[:, None]
    return host.tensor(mixed)


def collapse(streams: Tensor) -> Tensor:
    total = np.add.reduce(host.array(streams), 1)
    total *= np.float32(1.0 / streams.shape[1])
    return host.tensor(total)


def rows_are_independent(at: Steps, streams: int) -> bool:
    """True if every row has the same bits among up to `MOST_ROWS` rows, at any place, as alone."""
    values = np.random.default_rng(0).random((MOST_ROWS, streams, streams), np.float32) ** 4
    return host.rows_are_independent(lambda comb: sinkhorn(comb, at), values)
