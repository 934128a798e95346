"""S: the next token as a function of (logits, settings, seed, position, tokens so far), in float64 on the host.

No running generator and no state: the same row gives the same token in any batch, drafted or not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.core.errors import LockstepError
from lockstep.core.types import Sampling, TokenLogprob
from lockstep.kernels.noise import gumbel
from lockstep.kernels.sampling import limit, weights


class SamplingError(LockstepError):
    """Logits that name no token."""


class History:
    """Which ids a prompt has, and how often each was chosen since; arrays over the vocabulary."""

    def __init__(self, prompt_ids: Iterable[int], vocabulary: int) -> None:
        prompt = np.fromiter(prompt_ids, np.int64)
        self.seen = np.zeros(vocabulary, dtype=bool)
        self.seen[prompt[prompt < vocabulary]] = True
        self.counts = np.zeros(vocabulary, dtype=np.int64)
        self.added: list[int] = []

    def add(self, token: int) -> None:
        """`token` was chosen."""
        self.seen[token] = True
        self.counts[token] += 1
        self.added.append(token)


@dataclass(frozen=True, slots=True)
class RowRequest:
    """How one row is sampled. `position` is that of the token to choose; `banned` ids cannot be chosen, nor those not `allowed` (bool [V]).

    `history` is that of the tokens before it, needed if the settings have penalties; on a GPU drafts `ahead` of the row come behind it, and
    `told` alternatives are told beside the token, -1 for not even its own likelihood.
    """

    sampling: Sampling
    position: int
    banned: frozenset[int] = frozenset()
    history: History | None = None
    allowed: NDArray[np.bool_] | None = None
    ahead: tuple[int, ...] = ()
    told: int = -1


def choose(logits: NDArray[np.float32], row: RowRequest) -> int:
    """The token of one row. `logits [V]` holds only ids that may be chosen, in id order.

    Raises SamplingError if no logit is finite (the model broke down), every id is banned or the grammar allows none.
    """
    values = logits.astype(np.float64)
    _weigh(values, row)
    if row.allowed is not None:
        values[~row.allowed] = -np.inf
    if row.banned:
        values[[token for token in row.banned if token < len(values)]] = -np.inf
    best = int(values.argmax())
    refuse(row, values[best])
    if row.sampling.temperature <= 0:
        return best
    return _draw(values, values[best], row)


def refuse(row: RowRequest, largest: float) -> None:
    """Raise SamplingError if a row whose largest value is `largest` has no token."""
    if row.allowed is not None and not row.allowed.any():
        raise SamplingError(f"position {row.position}: the grammar allows no token here; needed: one that every reply can end with")
    if not np.isfinite(largest):
        raise SamplingError(f"position {row.position}: the largest logit is {largest}; needed: a finite number")


def logprob(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """What is told of `token` beside the row's `top` likeliest ids. `logits [V]` as for `choose`."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    best = _sorted_candidates(values, top) if top else ()
    return TokenLogprob(float(values[token]), tuple((int(one), float(values[one])) for one in best))


def _weigh(values: NDArray[np.float64], row: RowRequest) -> None:
    """Penalties and biases, in the order that `Sampling` gives."""
    settings = row.sampling
    if settings.has_penalties and row.history:
        seen, counts = row.history.seen, row.history.counts
        if settings.repetition_penalty != 1.0:
            said = values[seen]
            values[seen] = np.where(said > 0, said / settings.repetition_penalty, said * settings.repetition_penalty)
        values -= settings.frequency_penalty * counts + settings.presence_penalty * (counts > 0)
    for token, bias in settings.logit_bias:
        if token < len(values):
            values[token] += bias


def _draw(values: NDArray[np.float64], peak: float, row: RowRequest) -> int:
    settings = row.sampling
    tokens = _sorted_candidates(values, settings.top_k)
    if settings.top_p < 1.0 or settings.min_p > 0.0:
        likelihood, units = weights(peak - values[tokens], settings.temperature)
        kept = likelihood >= settings.min_p
        if settings.top_p < 1.0:
            kept &= np.cumsum(units) - units < limit(settings.top_p, units.sum())
        tokens = tokens[kept]
    # The peak is subtracted first: a tiny temperature then gives -inf for the others, never inf - inf.
    with np.errstate(over="ignore"):
        scores = (values[tokens] - peak) / settings.temperature + gumbel(settings.seed, row.position, tokens)
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
