"""Rows drawn all at once, as if every draft were right, come to the tokens of rows drawn one by one."""

from dataclasses import replace

import pytest

import fixtures.stepped_engine
from fixtures.drafters import CorruptedOracle
from fixtures.host_draws import HostSampler
from fixtures.stepped_engine import SteppedEngine
from lockstep.core.types import EngineRequest, Sampling
from lockstep.model.glm import GlmModel
from lockstep.run import draws
from lockstep.run.runner import Runner

HOW = Sampling(temperature=0.9, top_k=40, seed=7)
ASKED = [
    EngineRequest("plain", tuple(range(5, 40)), HOW, 12),
    EngineRequest("weighed", tuple(range(50, 70)), replace(HOW, presence_penalty=0.5, frequency_penalty=0.4, repetition_penalty=1.2), 12),
    EngineRequest("biased", tuple(range(9, 30)), replace(HOW, logit_bias=((77, 9.0), (78, 9.5)), temperature=0.0), 10, logprobs=3),
    EngineRequest("held", tuple(range(30, 44)), HOW, 10, frozenset({11, 12}), min_tokens=6, logprobs=0),
    EngineRequest("due", tuple(range(3, 20)), replace(HOW, presence_penalty=1.0), 12, logprobs=2, close_after=(4, 500)),
]


def test_at_once_equals_one_by_one_drafted_and_not(model: GlmModel, vocabulary: int, monkeypatch: pytest.MonkeyPatch):
    stepped = SteppedEngine(model, vocabulary, slots=5)
    serial = stepped.serve([(0, one) for one in ASKED[:4]]) | stepped.serve([(0, ASKED[4])])
    made: list[draws.Draws] = []

    class Drawing(Runner):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            self._draws = draws.Draws(self._vocabulary, 1, "cpu")
            made.append(self._draws)

    monkeypatch.setattr(draws, "RowSampler", HostSampler)
    monkeypatch.setattr(fixtures.stepped_engine, "Runner", Drawing)
    oracle = CorruptedOracle({key: reply.tokens for key, reply in serial.items()}, stepped.vocabulary)
    for drafter, most in ((None, 0), (oracle, 7)):
        found = stepped.serve([(at, one) for at, one in enumerate(ASKED)], drafter, most)
        assert {name: reply.bits for name, reply in found.items()} == {name: reply.bits for name, reply in serial.items()}
    assert all(one.sampler.drawn > 20 for one in made)  # type: ignore[attr-defined]
