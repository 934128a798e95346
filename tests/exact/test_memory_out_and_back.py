"""A stream's memory taken to the host, written over by others and put back elsewhere: same state hash, same tokens from then on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from lockstep.cache import StateSlots, TokenPool
from lockstep.config.serving import ServingOptions
from lockstep.core.plan import Admission, PromptSlice, Restore, StepPlan, StepWindow
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.loader import Surroundings, load_drafting
from lockstep.model.glm import GlmModel
from lockstep.run.runner import Runner
from lockstep.weights import Checkpoint

EMBEDDED = Path(__file__).parents[2] / "embedded"
DRAFTERS = {"none": ("none", 0), "mtp": ("mtp", 3), "dflash2": (str(EMBEDDED / "drafter"), 7)}
PAGES, SLOTS = 24, 3


def runner(model: GlmModel, checkpoint: Checkpoint, drafter: str) -> Runner:
    vocabulary = 1 + max(Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).get_vocab().values())
    # Depth by words, not by the clock: both runs must get as many drafts a round.
    options = ServingOptions(EMBEDDED, drafter=drafter, copy_tokens=0, draft_policy="7")
    pool, slots = TokenPool(model.config, PAGES, "cpu", model.dtype), StateSlots(model.config, SLOTS, "cpu", model.dtype)
    drafting = load_drafting(options, Surroundings(checkpoint, model, vocabulary, PAGES, SLOTS))
    return Runner(model, pool, slots, vocabulary, drafting.drafter)


def request(name: str, length: int) -> EngineRequest:
    return EngineRequest(name, tuple((11 * at + 5 * length) % 2000 for at in range(length)), Sampling(temperature=0.8, seed=3), 99)


def enter(runner: Runner, wanted: EngineRequest, slot: int, pages: tuple[int, ...]) -> list[int]:
    length = len(wanted.prompt_ids)
    plan = StepPlan(admissions=(Admission(wanted, slot, pages),), prompts=(PromptSlice(wanted.id, 0, length, last=True),))
    return list(runner.execute(plan).tokens[wanted.id])


def go_on(runner: Runner, name: str, drafts: int, rounds: int) -> list[int]:
    steps = [runner.execute(StepPlan(windows=(StepWindow(name, drafts),))) for _ in range(rounds)]
    return [token for step in steps for token in step.tokens[name]]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("length", [1, 63, 130, 300])
def test_memory_comes_back_bit_for_bit_in_another_slot_and_other_pages(model: GlmModel, checkpoint: Checkpoint, drafter: str, length: int):
    name, drafts = DRAFTERS[drafter]
    wanted = request("a", length)
    runs: dict[bool, tuple[list[int], list[str]]] = {}
    for moved in (False, True):
        torch.manual_seed(0)
        ours = runner(model, checkpoint, name)
        tokens, states = enter(ours, wanted, 0, tuple(range(8))), []
        tokens += go_on(ours, "a", drafts, 5)
        if moved:
            ours.pause("a")
            enter(ours, request("b", 490), 0, tuple(range(8)))
            go_on(ours, "b", drafts, 3)
            saved = ours._paused["a"].tensors
            ours.resume("a", 2, (23, 9, 21, 10, 19, 12, 17, 14))
            back = ours._memory.save(ours._live["a"]).tensors
            assert [name for name in saved if not torch.equal(saved[name], back[name])] == []
        states.append(ours.state_hash("a"))
        tokens += go_on(ours, "a", drafts, 8)
        states.append(ours.state_hash("a"))
        runs[moved] = tokens, states
    assert runs[True] == runs[False]
    # Drafts that were remembered wrongly would still give the same tokens, in more rounds.
    assert len(runs[True][0]) >= 14


def test_pages_that_do_not_cover_the_saved_tokens_are_refused(model: GlmModel, checkpoint: Checkpoint):
    ours = runner(model, checkpoint, "none")
    enter(ours, request("a", 130), 0, (0, 1, 2))
    ours.pause("a")
    with pytest.raises(ValueError, match="2 pages for a saved state of 130 tokens; needed: 3"):
        ours.resume("a", 1, (4, 5))


@pytest.mark.parametrize("drafter", ["mtp", "dflash2"])
def test_a_drafter_knows_of_a_kept_prefix_what_it_knew_when_it_read_it(model: GlmModel, checkpoint: Checkpoint, drafter: str):
    ours, cold, warm = runner(model, checkpoint, DRAFTERS[drafter][0]), request("a", 161), replace(request("a", 161), id="b")
    first = PromptSlice("a", 0, 128, last=False, keep=1), PromptSlice("a", 128, 33, last=True)
    ours.execute(StepPlan(admissions=(Admission(cold, 0, (0, 1, 2)),), prompts=first))
    rest = (PromptSlice("b", 128, 33, last=True),)
    ours.execute(StepPlan(admissions=(Admission(warm, 1, (0, 4, 5), Restore(1, 128, 1)),), prompts=rest))
    knew, knows = (ours._memory.save_state(ours._live[name]) for name in "ab")
    assert [name for name in knew if not torch.equal(knew[name], knows[name])] == []
