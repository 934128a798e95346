"""Delta attention of a few fp32 rows through NumPy: the inputs of both forms, and the stepwise form."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
from torch import Tensor

from lockstep.kernels import host

_UNIT_EPS = 1e-6


def inputs(mixed: Tensor, decay_input: Tensor, rate: Tensor, offset: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `kda.inputs`."""
    heads, width = offset.shape
    values = host.array(mixed).reshape(-1, 3, heads, width)
    pair = host.unit(values[:, :2], _UNIT_EPS, 1.0)
    pair[:, 0] *= np.float32(width**-0.5)
    decay = host.array(decay_input).reshape(-1, heads, width) + host.parameter(offset)
    decay *= -host.parameter(rate)
    host.share(decay, bound)
    return host.tensor(pair[:, 0]), host.tensor(pair[:, 1]), host.tensor(values[:, 2]), host.tensor(decay)


def beta(x: Tensor) -> Tensor:
    """See `kda.beta`."""
    return host.tensor(host.sigmoid(host.array(x))[..., None])


def step_window(
    state: Tensor, base: Tensor, scratch: Tensor, rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], active: Rows[int], out: Tensor
) -> None:
    """See `kda.step_window`."""
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
