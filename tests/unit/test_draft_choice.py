"""Proposals for sampled requests: the request's own noise makes them right more often than the drafter's favourite."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.core.types import Sampling
from lockstep.draft.choice import choose_draft
from lockstep.draft.policy import Policy
from lockstep.run.sampler import RowRequest, choose

TOKENS = np.arange(16)
PLAIN, NOISY = Policy(7), Policy(7, 0.3, noisy=True)


def test_a_greedy_request_gets_the_favourite_whatever_the_weight_of_noise():
    scores = np.random.default_rng(1).normal(size=16).astype(np.float32)
    softmax = np.exp(scores) / np.exp(scores).sum()
    for policy, power in ((PLAIN, 1.0), (NOISY, 0.5)):
        best, chance = choose_draft(scores, TOKENS, Sampling(temperature=0.0, seed=9), 5, policy, 3.0)
        assert best == int(scores.argmax())
        assert chance == pytest.approx((softmax**power / (softmax**power).sum()).max(), rel=1e-5)


def agreement(spread: float, error: float, noise: float) -> float:
    """Share of drafts equal to the target's choice when the drafter sees the target's logits plus an error."""
    draws, hits, trials = np.random.default_rng(2), 0, 3000
    for position in range(trials):
        target = (spread * draws.normal(size=16)).astype(np.float32)
        guess = (target + error * draws.normal(size=16)).astype(np.float32)
        sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=position % 7)
        best, _ = choose_draft(guess, TOKENS, sampling, position, PLAIN, noise)
        hits += int(TOKENS[best]) == choose(target, RowRequest(sampling, position))
    return hits / trials


@pytest.mark.parametrize(("spread", "error", "shared", "favourite"), [(1.5, 0.3, 0.876, 0.351), (3.0, 1.0, 0.728, 0.519)])
def test_shared_noise_agrees_as_often_as_the_coupling_predicts(spread: float, error: float, shared: float, favourite: float):
    assert agreement(spread, error, 1.0) == pytest.approx(shared, abs=0.035)
    assert agreement(spread, error, 0.0) == pytest.approx(favourite, abs=0.035)


def test_a_noisy_chance_is_that_of_the_score_with_noise():
    scores = np.zeros(16, np.float32)
    found = [choose_draft(scores, TOKENS, Sampling(temperature=1.0, seed=4), at, NOISY, 1.0)[1] for at in range(200)]
    flat = [choose_draft(scores, TOKENS, Sampling(temperature=1.0, seed=4), at, PLAIN, 1.0)[1] for at in range(200)]
    assert flat == pytest.approx([1 / 16] * 200)
    assert min(found) > 1 / 16
    assert max(found) > 0.3
