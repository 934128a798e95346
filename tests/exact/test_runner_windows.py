"""The runner on the embedded checkpoint: whatever the drafts say, a reply and its final state are those of serial steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lockstep.cache import StateSlots, TokenPool
from lockstep.core.plan import Admission, PromptSlice, StepPlan, StepWindow
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.stream import Ask, Drafter, Proposal
from lockstep.model.glm import GlmModel
from lockstep.run.runner import Runner
from lockstep.weights import Checkpoint

EMBEDDED = Path(__file__).parents[2] / "embedded"
VOCABULARY, SLOTS, PAGES_EACH, REPLY = 2000, 3, 5, 24
Guess = Callable[[str, int], tuple[int, ...]]


class Scripted(Drafter):
    """Drafts what a function of the request's name and its tokens so far says."""

    def __init__(self, guess: Guess) -> None:
        self.guess = guess

    def propose(self, asks: list[Ask]) -> list[Proposal]:
        return [Proposal(self.guess(ask.stream.request.id, ask.stream.generated)[: ask.limit]) for ask in asks]


@pytest.fixture(scope="module")
def model() -> GlmModel:
    torch.set_num_threads(1)
    checkpoint = Checkpoint(EMBEDDED)
    return GlmModel.load(checkpoint, checkpoint.config, "cpu")


def runner(model: GlmModel, guess: Guess) -> Runner:
    pool = TokenPool(model.config, SLOTS * PAGES_EACH, "cpu", torch.float32)
    return Runner(model, pool, StateSlots(model.config, SLOTS, "cpu"), VOCABULARY, Scripted(guess))


def entry(one: EngineRequest, slot: int) -> StepPlan:
    """Admit a request with pages scattered over the pool and run its prompt in one slice."""
    pages = tuple(range(slot, SLOTS * PAGES_EACH, SLOTS))
    return StepPlan(admissions=(Admission(one, slot, pages),), prompts=(PromptSlice(one.id, 0, len(one.prompt_ids), last=True),))


def requests(sampling: Sampling, **fields: object) -> list[EngineRequest]:
    return [
        EngineRequest(f"r{length}", tuple((11 * at + length) % 2000 for at in range(length)), sampling, REPLY, **fields)  # type: ignore[arg-type]
        for length in (5, 64, 259)
    ]


def replies(model: GlmModel, asked: list[EngineRequest], guess: Guess) -> dict[str, tuple[list[int], str]]:
    """Prompts first, then windows until every reply has `REPLY` tokens."""
    run = runner(model, guess)
    tokens = {one.id: list(run.execute(entry(one, slot)).tokens[one.id]) for slot, one in enumerate(asked)}
    while open_names := [name for name, got in tokens.items() if len(got) < REPLY]:
        windows = tuple(StepWindow(name, REPLY - len(tokens[name]) - 1) for name in open_names)
        for name, chosen in run.execute(StepPlan(windows=windows)).tokens.items():
            tokens[name] += chosen
    return {name: (got, run.state_hash(name)) for name, got in tokens.items()}


def nothing(name: str, at: int) -> tuple[int, ...]:
    return ()


def oracle_with_errors(serial: dict[str, tuple[list[int], str]], right: float) -> Guess:
    """Up to seven drafts, each the serial token with probability `right`, else any."""
    draws = random.Random(5)

    def draft(name: str, at: int) -> tuple[int, ...]:
        wanted = serial[name][0][at : at + draws.randint(0, 7)]
        return tuple(token if draws.random() < right else draws.randrange(VOCABULARY) for token in wanted)

    return draft


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("right", [0.0, 0.8, 1.0])
def test_drafts_change_neither_tokens_nor_state(model: GlmModel, temperature: float, right: float):
    asked = requests(Sampling(temperature=temperature, seed=3))
    serial = replies(model, asked, nothing)
    assert all(len(got) == REPLY for got, _ in serial.values())
    assert replies(model, asked, oracle_with_errors(serial, right)) == serial


def test_stop_ids_held_back_by_min_tokens_are_held_back_in_windows_too(model: GlmModel):
    greedy = Sampling(temperature=0.0)
    free = replies(model, requests(greedy), nothing)
    stops = frozenset(token for got, _ in free.values() for token in got[:3])
    asked = requests(greedy, stop_ids=stops, min_tokens=12)
    serial = replies(model, asked, nothing)
    assert all(not stops & set(got[:12]) for got, _ in serial.values())
    assert {name: got[:12] for name, (got, _) in replies(model, asked, oracle_with_errors(serial, 0.9)).items()} == {
        name: got[:12] for name, (got, _) in serial.items()
    }


def test_min_tokens_may_end_inside_a_window(model: GlmModel):
    stops = frozenset(range(0, VOCABULARY, 2))
    asked = requests(Sampling(temperature=4.0, top_k=0, top_p=1.0, seed=3), stop_ids=stops, min_tokens=12)
    serial = replies(model, asked, nothing)
    assert all(not stops & set(got[:12]) and stops & set(got[12:16]) for got, _ in serial.values())
    assert replies(model, asked, oracle_with_errors(serial, 1.0)) == serial


def test_a_window_never_runs_past_an_accepted_stop_id(model: GlmModel):
    greedy = Sampling(temperature=0.0)
    serial = replies(model, requests(greedy), nothing)
    longest: dict[str, int] = {}
    stops = frozenset(got[4] for got, _ in serial.values())
    run = runner(model, lambda name, at: tuple(serial[name][0][at : at + 7]))
    for slot, one in enumerate(requests(greedy, stop_ids=stops)):
        run.execute(entry(one, slot))
        chosen = run.execute(StepPlan(windows=(StepWindow(one.id, 7),))).tokens[one.id]
        longest[one.id] = len(chosen)
        assert list(chosen) == serial[one.id][0][1 : 1 + len(chosen)]
        assert not stops & set(chosen[:-1])
    assert max(longest.values()) <= 4
