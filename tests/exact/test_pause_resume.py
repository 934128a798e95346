"""A pool too small for all: requests are paused and go on elsewhere, and every reply has the tokens and the state it has alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from fixtures import engines
from fixtures.drafters import CorruptedOracle
from fixtures.engines import ask
from fixtures.keeping import Keeper
from fixtures.stepped_engine import SteppedEngine
from lockstep.channel.client import EngineClient
from lockstep.config.serving import ServingOptions
from lockstep.core.plan import StepPlan
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.loader import Surroundings, load_drafting
from lockstep.draft.stream import Drafter
from lockstep.model.glm import GlmModel
from lockstep.sched import Scheduler
from lockstep.weights import Checkpoint

EMBEDDED = Path(__file__).parents[2] / "embedded"
# Pages of the pool, 64 tokens each: each of the conversations below fits alone, two do not fit together.
PAGES = 6
DRAFTERS = {"none": ("none", 0), "mtp": ("mtp", 3), "dflash2": (str(EMBEDDED / "drafter"), 7)}
# By words, not by the clock: how fast replies grow decides whether the pool gets short.
POLICIES = {"none": "auto", "mtp": "3", "dflash2": "f7"}
SAMPLINGS = (Sampling(temperature=0.0), Sampling(temperature=0.8, top_k=50, seed=3))


@dataclass
class Pauses:
    """What plans said of pauses; `in_prompt` counts those of requests that had no token yet."""

    paused: int = 0
    resumed: int = 0
    in_prompt: int = 0


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """Counts the pauses of every scheduler of the test."""
    counted, plan = Pauses(), Scheduler.plan

    def counting(self: Scheduler) -> StepPlan:
        decoding = {name for name, live in self._live.items() if live.decoding}
        made = plan(self)
        counted.paused += len(made.pauses)
        counted.resumed += len(made.resumes)
        counted.in_prompt += sum(name not in decoding for name in made.pauses)
        return made

    monkeypatch.setattr(Scheduler, "plan", counting)
    return counted


def drafting(checkpoint: Checkpoint, model: GlmModel, vocabulary: int, name: str, pages: int) -> Drafter:
    options = ServingOptions(EMBEDDED, drafter=DRAFTERS[name][0], copy_tokens=0, draft_policy=POLICIES[name])
    return load_drafting(options, Surroundings(checkpoint, model, vocabulary, pages, 4)).drafter


def request(name: str, prompt: int, reply: int, sampling: Sampling, **fields: object) -> EngineRequest:
    ids = tuple((11 * at + 5 * prompt) % 2000 for at in range(prompt))
    return EngineRequest(name, ids, sampling, reply, **fields)  # type: ignore[arg-type]


def conversations(sampling: Sampling) -> list[EngineRequest]:
    wanted = [request("a", 130, 110, sampling), request("b", 63, 150, sampling)]
    assert sum(-(-(len(one.prompt_ids) + one.max_tokens) // 64) for one in wanted) > PAGES
    return wanted


def served_alone(model: GlmModel, vocabulary: int, wanted: list[EngineRequest]) -> list[tuple[tuple[int, ...], str]]:
    """Tokens and state of each request in a stepped of its own."""
    roomy = SteppedEngine(model, vocabulary, pages=16)
    return [roomy.serve([(0, one)])[one.id].bits for one in wanted]


@pytest.fixture(scope="module", params=SAMPLINGS, ids=["greedy", "sampled"])
def told(request: pytest.FixtureRequest, model: GlmModel, vocabulary: int) -> tuple[list[EngineRequest], list[tuple[tuple[int, ...], str]]]:
    """Two conversations and what each gets alone."""
    wanted = conversations(request.param)
    return wanted, served_alone(model, vocabulary, wanted)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_two_conversations_that_exceed_the_pool_together_both_finish_with_their_own_bits(
    model: GlmModel, checkpoint: Checkpoint, vocabulary: int, pauses: Pauses, drafter: str, told
):
    wanted, alone = told
    drafts, most = drafting(checkpoint, model, vocabulary, drafter, PAGES), DRAFTERS[drafter][1]
    replies = SteppedEngine(model, vocabulary, pages=PAGES).serve([(0, one) for one in wanted], drafts, most)
    assert [replies[one.id].bits for one in wanted] == alone
    assert pauses.paused == pauses.resumed >= 1
    if drafter != "none":
        assert sum(reply.usage.accepted_tokens for reply in replies.values()) > 0, "drafts go on behind a pause"


def test_a_prompt_paused_in_its_middle_goes_on_with_its_own_bits(model: GlmModel, vocabulary: int, pauses: Pauses):
    wanted = [request("a", 60, 200, SAMPLINGS[1]), request("b", 60, 200, SAMPLINGS[1]), request("reader", 645, 4, SAMPLINGS[1])]
    alone = served_alone(model, vocabulary, wanted)
    # Replies of 16 tokens a step outgrow their headroom while the prompt behind them is read, a tile a step.
    oracle = CorruptedOracle({one.id: tokens for one, (tokens, _) in zip(wanted, alone, strict=True)}, vocabulary, errs=0.0)
    replies = SteppedEngine(model, vocabulary, pages=15, prompt_slice=64).serve([(0, one) for one in wanted], oracle, 15)
    assert [replies[one.id].bits for one in wanted] == alone
    assert pauses.in_prompt >= 1


@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_pauses_beside_kept_prompts_and_cancels_change_nothing(
    model: GlmModel, checkpoint: Checkpoint, vocabulary: int, pauses: Pauses, drafter: str, told
):
    """The same conversations twice: the second time they begin from states the first has left, as far as these are still there."""
    wanted, alone = told
    stepped = SteppedEngine(model, vocabulary, pages=PAGES)
    drafts = drafting(checkpoint, model, vocabulary, drafter, PAGES)
    keeper = Keeper(model, stepped.pool, stepped.slots, vocabulary, drafts, DRAFTERS[drafter][1])
    for turn in range(2):
        again = [request(f"{turn}-{one.id}", len(one.prompt_ids), one.max_tokens, one.sampling) for one in wanted]
        left = request(f"{turn}-left", 70, 200, SAMPLINGS[1])
        replies = keeper.serve([(0, left), *((at, one) for at, one in enumerate(again))], [(20, left.id)])
        assert [replies[one.id].bits for one in again] == alone
    assert pauses.paused >= 2
    assert keeper.kept.totals.hit_tokens > 0


def test_a_paused_request_that_is_cancelled_has_the_state_it_had(model: GlmModel, vocabulary: int):
    stepped = SteppedEngine(model, vocabulary, pages=PAGES)
    keeper = Keeper(model, stepped.pool, stepped.slots, vocabulary, grid_tokens=0)
    sched, runner = keeper.scheduler, keeper.runner
    for one in conversations(SAMPLINGS[0]):
        sched.submit(one)
    state, plan = "", StepPlan()
    while not sched.paused:
        state = runner.state_hash("b") if "b" in runner._live else ""
        plan = sched.plan()
        sched.update(plan, runner.execute(plan))
    assert plan.pauses == ("b",)
    assert runner.state_hash("b") == state
    assert sched.cancel("b") is not None
    runner.execute(sched.plan())
    assert list(runner._live) == ["a"]
    assert runner._paused == {}


@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_two_rank_processes_pause_and_go_on_together(drafter: str):
    wanted = conversations(SAMPLINGS[1])

    async def scenario(client: EngineClient) -> int:
        alone = [await ask(client, one) for one in wanted]
        assert client.snapshot is not None
        assert client.snapshot.pauses_total == 0
        again = [request(f"{one.id}2", len(one.prompt_ids), one.max_tokens, one.sampling) for one in wanted]
        together = await asyncio.gather(*(ask(client, one) for one in again))
        assert together == alone
        assert all(len(tokens) == one.max_tokens and state for (tokens, state), one in zip(together, wanted, strict=True))
        return client.snapshot.pauses_total

    memory = ("--context", "256", "--pool-tokens", str(PAGES * 64), "--kept-gib", "0")
    paused = engines.serve(scenario, "--ranks", "2", "--drafter", drafter, "--parallel", "2", *memory)
    assert isinstance(paused, int)
    assert paused >= 1
