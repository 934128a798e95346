"""A prompt begun from a kept state gives the tokens and the final state it gives on a server that keeps nothing.

Cold without keeping == cold with keeping == warm from each grid point == at once from its own end == after spill == after eviction == among
others, for prompts around tile ends and for long ones, and for every drafter. CI takes some grid points of prompts of 1000 tokens and more;
LOCKSTEP_FULL_MATRIX=1 takes all, which is many minutes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from fixtures.keeping import Keeper
from fixtures.stepped_engine import Reply
from lockstep.cache import PAGE_TOKENS, StateSlots, TokenPool
from lockstep.cache.spill import SpillFolder
from lockstep.config.serving import ServingOptions
from lockstep.core.grid import last_tile
from lockstep.core.plan import Restore
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.loader import Drafting, Surroundings, load_drafting
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint

EMBEDDED = Path(__file__).parents[2] / "embedded"
SHORT, LONG = (1, 63, 64, 65, 127, 128, 129, 161, 1000), (4095, 4096, 4097)
SOME_GRID_POINTS = (64, 2048, 4032, 4096)
FULL = os.environ.get("LOCKSTEP_FULL_MATRIX") == "1"
DRAFTERS = {"none": "none", "mtp": "mtp", "dflash2": str(EMBEDDED / "drafter")}
GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=7)
PAGES, SLOTS, REPLY = 200, 4, 7


class Ground:
    """What all keepers stand on: one model, one pool, one set of slots and one drafter of each kind, reused as they are left."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.checkpoint = Checkpoint(EMBEDDED)
        self.model = GlmModel.load(self.checkpoint, self.checkpoint.config, "cpu")
        self.vocabulary = 1 + max(Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).get_vocab().values())
        self.pool = TokenPool(self.model.config, PAGES, "cpu", self.model.dtype)
        self.slots = StateSlots(self.model.config, SLOTS, "cpu", self.model.dtype)

    @cache  # noqa: B019
    def drafting(self, name: str) -> Drafting:
        # Depth by words, not by the clock: a warm prompt must get as many drafts as a cold one.
        options = ServingOptions(EMBEDDED, drafter=DRAFTERS[name], draft_policy="5")
        return load_drafting(options, Surroundings(self.checkpoint, self.model, self.vocabulary, PAGES, SLOTS))

    def scribble(self) -> None:
        """Leave nothing of earlier requests in slots and pages."""
        self.pool.latents[:, : PAGES * PAGE_TOKENS] = 9.0
        self.pool.pooled[:, : PAGES * self.pool.pools_per_page] = 9.0
        for part in (self.slots.kda, self.slots.conv_tail, self.slots.index_tail):
            part.fill_(9.0)

    def keeper(self, drafter: str, grid_tokens: int = PAGE_TOKENS, spill: SpillFolder | None = None) -> Keeper:
        drafting = self.drafting(drafter)
        return Keeper(
            self.model, self.pool, self.slots, self.vocabulary, drafting.drafter, drafting.max_drafts, grid_tokens=grid_tokens, spill=spill
        )

    @cache  # noqa: B019
    def cold(self, length: int, sampling: Sampling) -> tuple[tuple[int, ...], str]:
        """The reply of a server that keeps nothing and drafts nothing."""
        reply = self.keeper("none", grid_tokens=0).ask(request("cold", length, sampling))
        assert reply.usage.cached_tokens == 0
        return reply.bits


@pytest.fixture(scope="module")
def ground() -> Ground:
    return Ground()


def request(name: str, length: int, sampling: Sampling = GREEDY) -> EngineRequest:
    return EngineRequest(name, ids(length), sampling, REPLY)


@cache
def ids(length: int) -> tuple[int, ...]:
    """The first `length` ids of one long prompt, so that all lengths share prefixes."""
    return tuple((37 * at + at * at // 11) % 2000 for at in range(length))


def branch(length: int) -> EngineRequest:
    """Shares exactly `length` tokens with the long prompt."""
    return EngineRequest("branch", (*ids(length), (ids(length + 1)[-1] + 1) % 2000), GREEDY, 1)


def check(reply: Reply, wanted: tuple[tuple[int, ...], str], cached: int) -> None:
    assert reply.bits == wanted
    assert reply.usage.cached_tokens == cached


def drafting(reply: Reply) -> tuple[int, int, int]:
    return reply.usage.rounds, reply.usage.drafted_tokens, reply.usage.accepted_tokens


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("length", SHORT)
def test_a_prompt_is_the_same_cold_and_warm_from_every_grid_point(ground: Ground, length: int, drafter: str):
    for sampling in (SAMPLED, GREEDY):
        cold = ground.keeper(drafter).ask(request("a", length, sampling))
        check(cold, ground.cold(length, sampling), 0)
    for point in range(PAGE_TOKENS, length, PAGE_TOKENS if length < 500 or FULL else 5 * PAGE_TOKENS):
        keeper = ground.keeper(drafter)
        keeper.ask(branch(point))
        warm = keeper.ask(request("a", length))
        check(warm, ground.cold(length, GREEDY), point)
        assert drafting(warm) == drafting(cold), "the drafter remembers the same"


@pytest.mark.parametrize(("length", "drafter"), [(4095, "mtp"), (4096, "dflash2"), (4097, "none")])
def test_a_long_prompt_is_the_same_cold_and_warm(ground: Ground, length: int, drafter: str):
    wanted = ground.cold(length, SAMPLED)
    check(ground.keeper(drafter, grid_tokens=1024).ask(request("a", length, SAMPLED)), wanted, 0)
    keeper = ground.keeper(drafter)
    for point in SOME_GRID_POINTS:
        if point < length:
            keeper.ask(branch(point))
            check(keeper.ask(request(f"at {point}", length, SAMPLED)), wanted, point)
            keeper.evict_all()


@pytest.mark.skipif(not FULL, reason="minutes; LOCKSTEP_FULL_MATRIX=1 runs it")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("length", "drafter"), [(4095, "mtp"), (4096, "dflash2"), (4097, "none")])
def test_a_long_prompt_is_the_same_warm_from_every_grid_point(ground: Ground, length: int, drafter: str):
    keeper = ground.keeper(drafter)
    check(keeper.ask(request("cold", length)), ground.cold(length, GREEDY), 0)
    for point in range(last_tile(length), 0, -PAGE_TOKENS):
        for state in [state for state in keeper.kept._states.values() if state.tokens > point]:
            keeper.kept.forget(state.number)
        check(keeper.ask(request(f"at {point}", length)), ground.cold(length, GREEDY), point)


@pytest.mark.parametrize(("length", "drafter"), [*((length, drafter) for length in SHORT for drafter in DRAFTERS), (4096, "mtp")])
def test_an_identical_prompt_starts_at_once_whatever_its_sampling(ground: Ground, length: int, drafter: str):
    keeper = ground.keeper(drafter)
    first = keeper.ask(request("first", length))
    for name, sampling in (("same", GREEDY), ("sampled", SAMPLED), ("again", GREEDY)):
        warm = keeper.ask(request(name, length, sampling))
        check(warm, ground.cold(length, sampling), length)
        assert sampling is SAMPLED or drafting(warm) == drafting(first), "the drafter remembers the same"
        ran = [piece.count for plan in keeper.plans for piece in plan.prompts if piece.request_id == name]
        assert ran == [0], "no prompt row is run"


def from_disk_and_refilled(ground: Ground, length: int, drafter: str, folder: Path) -> None:
    """A prompt from disk, from its end on disk, from what came back into memory, from another process's files, and refilled."""
    wanted, point = ground.cold(length, GREEDY), last_tile(length)
    spill = SpillFolder(folder, 0)
    keeper = ground.keeper(drafter, spill=spill)
    keeper.ask(branch(point) if point else request("a", length))
    keeper.evict_all()
    ground.scribble()
    spill.settle()
    assert keeper.kept.disk_bytes > 0
    assert keeper.kept.memory_bytes == 0
    check(keeper.ask(request("from disk", length)), wanted, point or length)
    keeper.evict_all()
    check(keeper.ask(request("end from disk", length)), wanted, length)
    check(keeper.ask(request("end from memory", length)), wanted, length)
    assert [restore.source < 0 for restore in restores(keeper)] == [True, True, False], "what came from disk stays in memory"
    keeper.evict_all()
    spill.close(30)
    later = SpillFolder(folder, 0)
    again = ground.keeper(drafter, spill=later)
    again.kept.adopt(later.take_over(1))
    ground.scribble()
    check(again.ask(request("after a restart", length)), wanted, length)
    for number in range(1, 99):
        later.remove(number)
    later.close()
    forgetful = ground.keeper(drafter)
    forgetful.ask(request("a", length))
    forgetful.evict_all()
    assert len(forgetful.kept) == 0
    check(forgetful.ask(request("refilled", length)), wanted, 0)
    check(forgetful.ask(request("at once", length)), wanted, length)


def restores(keeper: Keeper) -> list[Restore]:
    return [one.restore for plan in keeper.plans for one in plan.admissions if one.restore]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_prompt_is_the_same_from_disk_and_after_everything_was_evicted(ground: Ground, drafter: str, tmp_path: Path):
    for length in SHORT:
        from_disk_and_refilled(ground, length, drafter, tmp_path)


@pytest.mark.parametrize(("length", "drafter"), [(4095, "dflash2"), (4096, "none"), (4097, "mtp")])
def test_a_long_prompt_is_the_same_from_disk_and_after_everything_was_evicted(ground: Ground, length: int, drafter: str, tmp_path: Path):
    from_disk_and_refilled(ground, length, drafter, tmp_path)


def test_prompts_wait_for_a_state_that_is_being_read_and_share_what_came_back(ground: Ground, tmp_path: Path):
    for broken in (False, True):
        spill = SpillFolder(tmp_path, 0)
        keeper = ground.keeper("mtp", spill=spill)
        keeper.ask(branch(960))
        keeper.evict_all()
        spill.settle()
        if broken:
            for path in tmp_path.glob("*.kept"):
                path.write_bytes(path.read_bytes()[:-1])
        replies = keeper.serve([(0, request(f"r{at}", 1000)) for at in range(3)])
        assert {reply.bits for reply in replies.values()} == {ground.cold(1000, GREEDY)}
        assert [reply.usage.cached_tokens for reply in replies.values()] == ([0, 1000, 1000] if broken else [960, 1000, 1000])
        assert keeper.kept.totals.lost == broken
        for number in range(1, 99):
            spill.remove(number)
        spill.close()


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prompts_are_the_same_among_others_that_share_their_prefixes(ground: Ground, drafter: str):
    keeper = ground.keeper(drafter)
    lengths = (161, 64, 1000, 129, 63, 1000, 65, 161, 127, 128, 500, 1)
    asked = [(2 * at, request(f"r{at}", length, (GREEDY, SAMPLED)[at % 2])) for at, length in enumerate(lengths)]
    company = [(1 + 3 * at, replace(request(f"c{at}", 700 + 64 * at), max_tokens=400)) for at in range(3)]
    replies = keeper.serve([*asked, *company], [(9 + 4 * at, f"c{at}") for at in range(3)])
    assert {name: reply.bits for name, reply in replies.items()} == {
        one.id: ground.cold(len(one.prompt_ids), one.sampling) for _, one in asked
    }
    assert sum(reply.usage.cached_tokens for reply in replies.values()) > 1000


def test_long_prompts_are_the_same_together(ground: Ground):
    keeper = ground.keeper("mtp", grid_tokens=1024)
    replies = keeper.serve([(at, request(f"{length}", length)) for at, length in enumerate(LONG)])
    again = keeper.serve([(at, request(f"{length}", length)) for at, length in enumerate(reversed(LONG))])
    for length in LONG:
        assert replies[f"{length}"].bits == ground.cold(length, GREEDY)
        check(again[f"{length}"], ground.cold(length, GREEDY), length)


def test_coded_rows_are_kept_as_they_are_stored(ground: Ground, tmp_path: Path):
    pool = TokenPool(ground.model.config, PAGES, "cpu", ground.model.dtype, "fp8")
    wanted = Keeper(ground.model, pool, ground.slots, ground.vocabulary, grid_tokens=0).ask(request("cold", 300)).bits
    spill = SpillFolder(tmp_path, 0)
    keeper = Keeper(ground.model, pool, ground.slots, ground.vocabulary, spill=spill)
    keeper.ask(branch(256))
    check(keeper.ask(request("warm", 300)), wanted, 256)
    keeper.evict_all()
    pool.latents[:, : PAGES * PAGE_TOKENS] = 9
    check(keeper.ask(request("from disk", 300)), wanted, 300)
    spill.close()


def test_equal_prompts_that_come_together_are_run_once(ground: Ground):
    keeper = ground.keeper("none")
    replies = keeper.serve([(0, request(f"r{at}", 1000)) for at in range(4)])
    assert all(reply.bits == ground.cold(1000, GREEDY) for reply in replies.values())
    assert sorted(reply.usage.cached_tokens for reply in replies.values()) == [0, 1000, 1000, 1000]
    assert sum(piece.count for plan in keeper.plans for piece in plan.prompts) == 1000


def test_a_prompt_waits_for_the_part_that_another_one_is_running(ground: Ground):
    keeper = ground.keeper("mtp", grid_tokens=4096)
    other = EngineRequest("other", (*ids(700), *ids(400)), GREEDY, REPLY)
    replies = keeper.serve([(0, request("long", 2000)), (1, other), (1, request("unlike", 10))])
    assert replies["other"].usage.cached_tokens == 640, "a state is made where the two part, off the grid of states"
    assert keeper.kept.totals.waits == 1
    assert replies["long"].bits == ground.cold(2000, GREEDY)
    assert replies["other"].bits == ground.keeper("none", grid_tokens=0).ask(replace(other, id="cold")).bits


def test_a_prompt_whose_leader_is_cancelled_runs_by_itself(ground: Ground):
    keeper = ground.keeper("none", grid_tokens=4096)
    replies = keeper.serve([(0, request("leader", 2000)), (1, request("next", 1000))], [(1, "leader")])
    check(replies["next"], ground.cold(1000, GREEDY), 0)


def test_namespaces_and_serial_requests_share_nothing(ground: Ground):
    keeper = ground.keeper("mtp")
    base = request("base", 300)
    keeper.ask(base)
    for name, other in (("salt", replace(base, namespace="b")), ("serial", replace(base, draft=False))):
        check(keeper.ask(replace(other, id=name)), ground.cold(300, GREEDY), 0)
        check(keeper.ask(replace(other, id=f"{name} again")), ground.cold(300, GREEDY), 300)


def test_a_next_turn_begins_from_the_newest_prompt_never_from_the_reply(ground: Ground):
    keeper = ground.keeper("mtp", grid_tokens=2048)
    first = keeper.ask(request("turn 1", 1000))
    second = EngineRequest("turn 2", (*ids(1000), *first.tokens, *ids(90)), GREEDY, REPLY)
    warm = keeper.ask(second)
    assert warm.usage.cached_tokens == 960, "the last tile end inside the first prompt"
    assert warm.bits == ground.keeper("none", grid_tokens=0).ask(replace(second, id="cold")).bits
