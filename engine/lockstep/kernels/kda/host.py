"""Delta attention of a few fp32 rows through NumPy: the inputs of both forms, and the stepwise form."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lockstep.kernels import host
from lockstep.kernels.causal_conv.host import convolve
from lockstep.kernels.host import Array
from lockstep.kernels.kda.ref import RowInputs
from lockstep.kernels.linear import linear

if TYPE_CHECKING:
    from lockstep.kernels.kda import Mixer

_UNIT_EPS = 1e-6


def prepare(projected: Tensor, source: Callable[[Tensor], Tensor], index: Tensor, mixer: Mixer) -> tuple[RowInputs, Tensor]:
    heads, width = mixer.offset.shape
    channels = heads * width
    values = host.array(projected)
    mixed = convolve(host.array(source(host.tensor(values[:, : 3 * channels]))), host.array(index), host.parameter(mixer.taps))
    low = values[:, 3 * channels : 3 * channels + 2 * width].reshape(-1, 2, width)
    both = host.array(linear(host.tensor(low), mixer.decay_and_gate)).reshape(-1, 2, heads, width)
    q, k, v, decay = _inputs(mixed.reshape(-1, 3, heads, width), both[:, 0], mixer.rate, mixer.offset, mixer.bound)
    beta = host.sigmoid(values[:, 3 * channels + 2 * width :])[..., None]
    return (host.tensor(q), host.tensor(k), host.tensor(v), host.tensor(decay), host.tensor(beta)), host.tensor(both[:, 1])


def inputs(mixed: Tensor, decay_input: Tensor, rate: Tensor, offset: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads, width = offset.shape
    values = host.array(mixed).reshape(-1, 3, heads, width), host.array(decay_input).reshape(-1, heads, width)
    q, k, v, decay = _inputs(*values, rate, offset, bound)
    return host.tensor(q), host.tensor(k), host.tensor(v), host.tensor(decay)


def _inputs(mixed: Array, decay: Array, rate: Tensor, offset: Tensor, bound: float) -> tuple[Array, Array, Array, Array]:
    pair = host.unit(mixed[:, :2], _UNIT_EPS, 1.0)
    pair[:, 0] *= np.float32(mixed.shape[-1] ** -0.5)
    decay = decay + host.parameter(offset)
    decay *= -host.parameter(rate)
    host.share(decay, bound)
    return pair[:, 0], pair[:, 1], mixed[:, 2], decay


def beta(x: Tensor) -> Tensor:
    return host.tensor(host.sigmoid(host.array(x))[..., None])


def step_window(state: Tensor, base: Tensor, scratch: Tensor, rows: RowInputs, active: Rows[int], out: Tensor) -> None:
    q, k, v, log_decay, beta = (host.array(values) for values in rows)
    decay = np.exp(log_decay)[..., None]
    q_row, k_row, k_column, v_row = q[:, :, None], k[:, :, None], k[..., None], v[:, :, None]
    beta, result = beta[..., None], host.array(out)[:, :, None]
    held, old, new = host.array(state), host.array(base), host.array(scratch)
    alone = len(old) == 1
    current = held[new[0], None] if alone else held.take(old, 0)
    change = np.empty_like(current)
    first = 0
    for count in active:
        part, at = current[:count], slice(first, first + count)
        if alone and not first:
            np.multiply(held[old[0]], decay[0], part[0])
        else:
            part *= decay[at]
        # exact: one product of one shape a sequence and head, whatever the number of sequences.
        error = np.matmul(k_row[at], part)
        np.subtract(v_row[at], error, error)
        error *= beta[at]
        part += np.multiply(k_column[at], error, change[:count])
        np.matmul(q_row[at], part, result[at])
        first += count
    if not alone:
        held[new] = current
