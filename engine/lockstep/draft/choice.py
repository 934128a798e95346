"""Which candidate to propose. The target adds noise known from (seed, position, token) before it takes its largest score; a proposal
that adds the same noise to the drafter's scores is right more often than the drafter's favourite. No tensor.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.core.types import Sampling
from lockstep.draft.policy import Policy
from lockstep.kernels.noise import gumbel


def choose_draft(
    scores: NDArray[np.float32], tokens: NDArray[np.int64], sampling: Sampling, position: int, policy: Policy, noise: float
) -> tuple[int, float]:
    """Index of the candidate to propose for `position`, and its chance as `policy` reads it.

    `scores [K]` of the ids `tokens [K]`. `noise` weighs the request's noise; a greedy request has none. The request's cuts (top-k, top-p,
    min-p) are the target's business.
    """
    plain = scores.astype(np.float64)
    noisy = plain
    if sampling.temperature > 0:
        noisy = plain / sampling.temperature + noise * gumbel(sampling.seed, position, tokens)
    best = int(noisy.argmax())
    basis = noisy / policy.blur if policy.noisy else plain
    weights = np.exp(basis - basis.max())
    return best, float(weights[best] / weights.sum())
