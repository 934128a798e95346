"""The runner on the embedded checkpoint: whatever the drafts say, a reply and its final state are those of serial steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.cache import StateSlots, TokenPool
from lockstep.core.plan import Admission, PromptSlice, StepPlan, StepWindow
from lockstep.core.types import EngineRequest, Sampling, TokenLogprob
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


def test_penalties_biases_and_a_token_that_is_due_are_the_same_with_drafts_and_change_replies(model: GlmModel):
    plain = Sampling(temperature=1.0, seed=3)
    free = replies(model, requests(plain), nothing)
    told: dict[str, Any] = {"presence_penalty": 0.7, "frequency_penalty": 0.9, "repetition_penalty": 1.3}
    for settings, fields in (
        (Sampling(temperature=0.0, **told), {}),
        (Sampling(temperature=1.0, seed=3, logit_bias=((7, 9.0), (8, -100.0))), {"close_after": (9, 5)}),
        (Sampling(temperature=1.0, seed=3, **told), {"close_after": (9, 5)}),
    ):
        asked = requests(settings, **fields)
        serial = replies(model, asked, nothing)
        assert all(serial[name][0] != free[name][0] for name in free)
        assert all(5 in got[:10] for got, _ in serial.values()) or not fields
        for right in (0.0, 0.8, 1.0):
            assert replies(model, asked, oracle_with_errors(serial, right)) == serial


def test_logprobs_of_reply_and_prompt_are_those_of_the_logits_however_rows_are_cut(model: GlmModel):
    one = EngineRequest("r", tuple(range(100, 230)), Sampling(temperature=0.0), REPLY, logprobs=3, prompt_logprobs=2)
    serial, pages = replies(model, [one], nothing), tuple(range(PAGES_EACH))

    def told(guess: Guess, cuts: tuple[int, ...]) -> tuple[list[TokenLogprob], list[TokenLogprob]]:
        run, of_reply, of_prompt = runner(model, guess), list[TokenLogprob](), list[TokenLogprob]()
        ends = (*cuts, 130)
        slices = [PromptSlice("r", start, end - start, end == 130) for start, end in zip((0, *cuts), ends, strict=True)]
        plans = [StepPlan((), (Admission(one, 0, pages),), tuple(slices))]
        while len(of_reply) < REPLY:
            result = run.execute(plans.pop() if plans else StepPlan(windows=(StepWindow("r", REPLY - len(of_reply) - 1),)))
            assert len(result.logprobs["r"]) == len(result.tokens["r"])
            of_reply += result.logprobs["r"]
            of_prompt += result.prompt_logprobs.get("r", ())
        return of_reply, of_prompt

    whole = told(nothing, ())
    assert told(oracle_with_errors(serial, 0.8), (64,)) == told(oracle_with_errors(serial, 1.0), (64, 128)) == whole
    assert len(whole[1]) == 129
    assert all(row.logprob == row.top[0][1] > row.top[1][1] >= row.top[2][1] for row in whole[0])
    assert [row.top[0][0] for row in whole[0]] == serial["r"][0]
    with torch.inference_mode():
        run = runner(model, nothing)
        run.execute(StepPlan((), (Admission(one, 0, pages),)))
        hidden = model.run_prompt(run._live["r"].sequence, one.prompt_ids, every_row=True).hidden
        exact = torch.log_softmax(model.head(hidden)[:, :VOCABULARY].double(), -1)
    assert [row.logprob for row in whole[1]] == pytest.approx([float(exact[at, one.prompt_ids[at + 1]]) for at in range(129)], abs=1e-12)


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
