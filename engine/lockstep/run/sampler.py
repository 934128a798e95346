"""S: the next token as a function of (logits, settings, seed, position), in float64 on the host.

No running generator and no state: the same row gives the same token in any batch, drafted or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.core.errors import LockstepError
from lockstep.core.types import Sampling
from lockstep.kernels.noise import gumbel


class SamplingError(LockstepError):
    """Logits that name no token."""


@dataclass(frozen=True, slots=True)
class RowRequest:
    """How one row is sampled. `position` is that of the token to choose; `banned` ids cannot be chosen."""

    sampling: Sampling
    position: int
    banned: frozenset[int] = frozenset()


def choose(logits: NDArray[np.float32], row: RowRequest) -> int:
    """The token of one row. `logits [V]` holds only ids that may be chosen, in id order.

    Raises SamplingError if no logit is finite (the model broke down) or every id is banned.
    """
    values = logits.astype(np.float64)
    if row.banned:
        values[[token for token in row.banned if token < len(values)]] = -np.inf
    best = int(values.argmax())
    if not np.isfinite(values[best]):
        raise SamplingError(f"position {row.position}: the largest logit is {values[best]}; needed: a finite number")
    if row.sampling.temperature <= 0:
        return best
    return _draw(values, values[best], row)


def _draw(values: NDArray[np.float64], peak: float, row: RowRequest) -> int:
    settings = row.sampling
    tokens = _sorted_candidates(values, settings.top_k)
    # The peak is subtracted first: a tiny temperature then gives -inf for the others, never inf - inf.
    with np.errstate(over="ignore"):
        scaled = (values[tokens] - peak) / settings.temperature
    weights = np.exp(scaled)
    if settings.top_p < 1.0:
        before = np.cumsum(weights) - weights
        kept = max(1, int(np.count_nonzero(before < settings.top_p * weights.sum())))
        tokens, scaled, weights = tokens[:kept], scaled[:kept], weights[:kept]
    if settings.min_p > 0.0:
        kept = int(np.count_nonzero(weights >= settings.min_p))
        tokens, scaled = tokens[:kept], scaled[:kept]
    scores = scaled + gumbel(settings.seed, row.position, tokens)
    return int(tokens[scores == scores.max()].min())


def _sorted_candidates(values: NDArray[np.float64], top_k: int) -> NDArray[np.int64]:
    """Ids by (value descending, id ascending), the first `top_k` of them; 0 keeps all of finite value."""
    if 0 < top_k < len(values):
        edge = np.partition(values, len(values) - top_k)[len(values) - top_k]
        within = np.flatnonzero((values >= edge) & (values > -np.inf))
    else:
        within = np.flatnonzero(values > -np.inf)
    order = np.argsort(-values[within], kind="stable")
    return within[order][: top_k or None]
