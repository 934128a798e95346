"""The sampler against a slow plain twin, against the law it must follow, and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.types import Sampling
from lockstep.kernels.noise.ref import gumbel, uniform
from lockstep.run.sampler import RowRequest, SamplingError, choose

MASK = (1 << 64) - 1


def splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def noise(seed: int, position: int, token: int) -> float:
    x = splitmix(splitmix(splitmix(seed) ^ position) ^ token)
    u = min((x >> 11) * 2.0**-53 + 2.0**-54, 1.0 - 2.0**-53)
    return -math.log(-math.log(u))


def plain_choice(logits: list[float], settings: Sampling, position: int) -> int:
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if settings.temperature <= 0:
        return order[0]
    if settings.top_k:
        order = order[: settings.top_k]
    weights = [math.exp((logits[t] - logits[order[0]]) / settings.temperature) for t in order]
    if settings.top_p < 1:
        total, seen, kept = float(np.asarray(weights).sum()), 0.0, 0
        for weight in weights:
            if kept and seen >= settings.top_p * total:
                break
            seen, kept = seen + weight, kept + 1
        order, weights = order[:kept], weights[:kept]
    order = [t for t, weight in zip(order, weights, strict=True) if weight >= settings.min_p]
    scores = {t: (logits[t] - logits[order[0]]) / settings.temperature + noise(settings.seed, position, t) for t in order}
    return min(scores, key=lambda t: (-scores[t], t))


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.6, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 20, 500]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.9, 1.0]),
    seed=st.integers(0, MASK),
)


@given(st.integers(0, 2**32 - 1), samplings, st.integers(0, 1 << 20), st.booleans())
def test_it_chooses_what_the_plain_twin_chooses(draw: int, settings: Sampling, position: int, coarse: bool):
    logits = np.random.default_rng(draw).normal(0, 3, 60).astype(np.float32)
    if coarse:
        logits = np.round(logits)
    assert choose(logits, RowRequest(settings, position)) == plain_choice([float(v) for v in logits], settings, position)


def test_noise_is_a_function_of_seed_position_and_token():
    tokens = np.array([5, 0, 2303])
    assert gumbel(MASK, 77, tokens).tolist() == pytest.approx([noise(MASK, 77, int(t)) for t in tokens], rel=1e-15)


def test_no_draw_reaches_zero_or_one():
    least, most = uniform(np.array([0, MASK], dtype=np.uint64))
    assert 0.0 < least < most < 1.0
    assert np.isfinite(-np.log(-np.log([least, most]))).all()


@pytest.mark.parametrize("settings", [Sampling(1.0, top_k=100, top_p=1.0), Sampling(1.0, top_k=0, top_p=0.2), Sampling(2.0, 300, 0.5)])
def test_a_cut_through_equal_logits_keeps_the_lowest_ids(settings: Sampling):
    logits = np.random.default_rng(1).integers(0, 3, 2304).astype(np.float32)
    values = [float(v) for v in logits]
    for position in range(20):
        assert choose(logits, RowRequest(settings, position)) == plain_choice(values, settings, position)


def test_draws_follow_the_softmax():
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5], dtype=np.float32)
    settings, rounds = Sampling(temperature=0.8, top_k=0, top_p=1.0, seed=3), 20_000
    counts = np.bincount([choose(logits, RowRequest(settings, position)) for position in range(rounds)], minlength=5)
    law = np.exp(logits / 0.8) / np.exp(logits / 0.8).sum()
    chi_square = float((((counts - rounds * law) ** 2) / (rounds * law)).sum())
    assert chi_square < 23.5  # 4 degrees of freedom, one in ten thousand


def test_ties_go_to_the_lowest_id():
    logits = np.array([1.0, 4.0, 4.0, 4.0], dtype=np.float32)
    assert choose(logits, RowRequest(Sampling(temperature=0), 0)) == 1
    assert choose(logits, RowRequest(Sampling(temperature=1.0, top_k=1), 0)) == 1


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-300])
def test_a_tiny_temperature_is_greedy_and_never_overflows(temperature: float):
    logits = np.array([3.0, 500.0, -500.0, 499.0], dtype=np.float32)
    assert choose(logits, RowRequest(Sampling(temperature=temperature, top_p=0.5, min_p=0.1), 9)) == 1


def test_banned_ids_are_never_chosen():
    logits = np.array([0.0, 9.0, 8.0], dtype=np.float32)
    for settings in (Sampling(temperature=0), Sampling(temperature=1.0)):
        assert choose(logits, RowRequest(settings, 0, frozenset({1, 2, 5000}))) == 0


@pytest.mark.parametrize("values", [[math.nan, 1.0], [-math.inf, -math.inf], [math.inf, 0.0]])
def test_logits_that_name_no_token_are_an_error(values: list[float]):
    with pytest.raises(SamplingError, match="position 4"):
        choose(np.array(values, dtype=np.float32), RowRequest(Sampling(), 4))
