"""Kept states by numbers: no page is ever lost or owned twice, budgets hold, and the right state goes first."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.plan import Spill, Spilled, StepPlan, StepResult
from lockstep.core.types import EngineRequest, Picture, Sampling
from lockstep.sched import KeptLimits, Scheduler, SchedulerLimits
from lockstep.sched.kept import KeptPrompts
from lockstep.sched.ledger import Ledger
from lockstep.sched.trace import Trace

PAGES = 24


def request(name: str, prompt: tuple[int, ...], reply: int = 8, namespace: str = "", marks: tuple[int, ...] = ()) -> EngineRequest:
    return EngineRequest(name, prompt, Sampling(), reply, namespace=namespace, marks=marks)


class Keeping:
    """A scheduler whose runner gives token 5 for every row and, now and then, cannot read a state from disk."""

    def __init__(self, limits: KeptLimits, draws: random.Random) -> None:
        self.scheduler = Scheduler(SchedulerLimits(1024, 3, PAGES, 128, 99), lambda: 0.0, limits)
        self.draws, self.memory, self.disk = draws, set[int](), set[int]()
        self.never_made = set[int]()
        self.ended: set[str] = set()

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        result = StepResult(lost=self._obey(plan))
        for piece in plan.prompts:
            if piece.last and piece.request_id not in result.lost:
                result.tokens[piece.request_id] = (5,)
        for window in plan.windows:
            result.tokens[window.request_id] = (5,)
        for event in self.scheduler.update(plan, result):
            if event.finish:
                assert event.usage
                assert event.usage.cached_tokens <= event.usage.prompt_tokens
                self.ended.add(event.request_id)
        return plan

    def _obey(self, plan: StepPlan) -> tuple[str, ...]:
        """What a runner would do; asserts that it could."""
        for spill in plan.spills:
            self.memory.remove(spill.kept)
            assert bool(spill.pages) == (spill.kept not in self.disk), "what is on disk already is not written again"
            self.disk.add(spill.kept)
        for number in plan.drops:
            assert number in self.memory | self.disk | self.never_made
            self.memory.discard(number)
            self.disk.discard(number)
        lost = []
        for admission in plan.admissions:
            assert len(set(admission.pages)) == len(admission.pages)
            if restore := admission.restore:
                assert restore.kept in (self.memory if restore.source >= 0 else self.disk)
                if restore.source < 0 and self.draws.random() < 0.3:
                    lost.append(admission.request.id)
                elif restore.stays:
                    assert restore.source < 0
                    self.memory.add(restore.kept)
                assert restore.source not in admission.pages, "the page with the last row is a copy"
        for piece in plan.prompts:
            if piece.keep and piece.request_id not in lost:
                assert piece.keep not in self.memory | self.disk
                self.memory.add(piece.keep)
            elif piece.keep:
                self.never_made.add(piece.keep)
        return tuple(lost)

    def check(self, limits: KeptLimits) -> None:
        kept = self.scheduler.kept
        # States that turned out to be lost leave the runner with the next plan.
        assert 0 <= len(self.memory | self.disk) - len(kept) <= self.scheduler.running
        assert kept.memory_bytes <= limits.budget_bytes
        assert kept.disk_bytes <= limits.spill_bytes


@settings(max_examples=80)
@given(
    seed=st.integers(0, 1 << 32),
    budget=st.sampled_from([0, 2, 5, 50]),
    spill=st.sampled_from([0, 40, 400]),
    grid=st.sampled_from([64, 256]),
)
def test_whatever_arrives_ends_leaves_and_is_evicted_no_page_is_lost(seed: int, budget: int, spill: int, grid: int):
    draws = random.Random(seed)
    limits = KeptLimits(budget * 10, 10, 2, 4, spill, 0.5, grid, 64)
    ours = Keeping(limits, draws)
    trunk = tuple(draws.randrange(9) for _ in range(640))
    asked: list[str] = []
    for at in range(draws.randint(5, 30)):
        shared = draws.choice((0, 10, 64, 130, 256, 640))
        prompt = trunk[:shared] + tuple(draws.randrange(9) for _ in range(draws.choice((1, 5, 70, 200))))
        one = request(f"r{at}", prompt, draws.randint(1, 80), draws.choice("ab"), (draws.randint(1, 300),))
        ours.scheduler.submit(one)
        asked.append(one.id)
        for _ in range(draws.randint(0, 6)):
            ours.step()
            ours.check(limits)
        if draws.random() < 0.2 and ours.scheduler.cancel(gone := draws.choice(asked)):
            ours.ended.add(gone)
    for _ in range(4000):
        if not (ours.scheduler.running or ours.scheduler.waiting):
            break
        ours.step()
        ours.check(limits)
    assert ours.ended == set(asked), "every request ends"
    assert ours.scheduler.free_slots == 3
    assert ours.scheduler.free_pages == PAGES
    assert ours.scheduler.kept.make_room(PAGES), "kept states give every page back"
    ours.step()
    assert not ours.memory
    assert ours.scheduler.kept.memory_bytes == 0
    assert len(ours.disk) == len(ours.scheduler.kept)
    assert ours.scheduler.kept.idle_pages == 0


class Index:
    """The index of states alone, over a ledger."""

    def __init__(self, **limits: float) -> None:
        self.pages = Ledger(99)
        self.kept = KeptPrompts(KeptLimits(**{"budget_bytes": 30, "state_bytes": 10} | limits), self.pages)  # pyright: ignore[reportArgumentType]

    def keep(self, trace: Trace, tokens: int) -> int:
        pages = self.pages.take(-(-tokens // 64))
        number = self.kept.keep(trace, tokens, pages)
        self.pages.give_back(pages)
        self.kept.take_orders()
        return number


def trace(start: int, tokens: int, namespace: str = "", marks: tuple[int, ...] = ()) -> Trace:
    return Trace(request("t", tuple((start + at) % 1000 for at in range(tokens)), namespace=namespace, marks=marks))


def test_a_superseded_state_goes_before_an_older_one_of_another_conversation():
    index = Index()
    index.keep(trace(500, 65), 64)
    index.keep(trace(0, 300), 128)
    index.keep(trace(0, 300), 256)
    index.keep(trace(700, 65), 64)
    assert [index.kept.find(one) is not None for one in (trace(500, 65), trace(0, 129), trace(0, 300))] == [True, False, True]


def test_a_state_begun_from_twice_and_the_end_of_a_system_text_are_not_superseded():
    index = Index(budget_bytes=40)
    marked = trace(0, 300, marks=(70,))
    for tokens in (64, 128):
        index.keep(marked, tokens)
    for _ in range(2):
        state = index.kept.find(trace(0, 129))
        assert state is not None
        index.kept.restore(state)
        index.kept.take_orders()
    index.keep(marked, 192)
    index.keep(marked, 256)
    index.keep(trace(700, 65), 64)
    kept = [index.kept.find(one) is not None for one in (trace(0, 65), trace(0, 129), trace(0, 300))]
    assert kept == [True, True, True]
    assert index.kept.find(trace(0, 193)).tokens == 128, "the one in between went"  # pyright: ignore[reportOptionalMemberAccess]


def test_the_least_recently_used_goes_first():
    index = Index()
    for start in (100, 200, 300):
        index.keep(trace(start, 65), 64)
    state = index.kept.find(trace(100, 65))
    assert state is not None
    index.kept.restore(state)
    index.kept.take_orders()
    index.keep(trace(400, 65), 64)
    assert [index.kept.find(trace(start, 65)) is not None for start in (100, 200, 300, 400)] == [True, False, True, True]


def test_a_namespace_above_its_share_loses_its_own_states():
    index = Index(budget_bytes=60, share=0.5)
    index.keep(trace(0, 65, "quiet"), 64)
    for start in range(100, 1000, 100):
        index.keep(trace(start, 65, "loud"), 64)
    assert index.kept.find(trace(0, 65, "quiet")) is not None
    assert index.kept.find(trace(100, 65, "loud")) is None


def test_one_namespace_alone_may_use_the_whole_budget():
    index = Index(budget_bytes=60, share=0.1)
    for start in range(0, 600, 100):
        index.keep(trace(start, 65), 64)
    assert len(index.kept) == 6


def test_a_state_the_plan_under_way_uses_is_not_evicted():
    index = Index(budget_bytes=10)
    number = index.keep(trace(0, 65), 64)
    state = index.kept.find(trace(0, 65))
    assert state is not None
    index.kept.restore(state)
    assert index.keep(trace(100, 65), 64) == 0
    assert index.keep(trace(100, 65), 64) > number, "in the next plan it may"


def spilling(**limits: float) -> Index:
    return Index(**{"budget_bytes": 20, "page_bytes": 1, "spill_bytes": 33} | limits)


def spilled(index: Index) -> list[Spill]:
    """What the next plan would send to disk."""
    return list(index.kept.take_orders()[0])


def test_a_state_from_disk_is_in_memory_again_and_the_least_recently_used_makes_way():
    index = spilling()
    numbers = [index.keep(trace(start, 65), 64) for start in (100, 200, 300)]
    first = index.kept.find(trace(100, 65))
    assert first is not None
    assert (first.number, first.in_memory, index.kept.disk_bytes) == (numbers[0], False, 11)
    assert index.kept.restore(first).source == -1
    pages = index.pages.take(1)
    assert index.kept.bring_back(first, pages)
    assert index.kept.is_arriving(first), "nobody else may begin from it before it is read"
    (out,) = spilled(index)
    assert (out.kept, first.in_memory, index.kept.memory_bytes) == (numbers[1], True, 20)
    assert not index.kept.is_arriving(first)
    assert index.kept.restore(first).source == pages[0]
    index.kept.take_orders()
    index.keep(trace(400, 65), 64)
    index.pages.give_back(pages)
    index.kept.make_room(99)
    assert [spill for spill in spilled(index) if spill.kept == first.number] == [Spill(first.number)], "its file is still there"


def test_states_that_are_in_use_leave_no_room_for_one_from_disk():
    index = spilling(budget_bytes=10)
    index.keep(trace(100, 65), 64)
    number = index.keep(trace(200, 65), 64)
    one, two = (index.kept.find(trace(start, 65)) for start in (100, 200))
    assert one is not None
    assert two is not None
    index.kept.restore(two)
    index.kept.restore(one)
    assert not index.kept.bring_back(one, index.pages.take(1))
    assert (two.number, two.in_memory, one.in_memory) == (number, True, False)


def test_what_is_on_disk_is_found_by_the_next_server_oldest_dropped_first():
    index, labels = spilling(spill_bytes=99), list[Spilled]()
    for one, tokens in ((trace(100, 65), 64), (trace(200, 66, "b"), 66), (trace(500, 300, marks=(70,)), 64)):
        index.keep(one, tokens)
        assert index.kept.put_away()
        labels += [Spilled(spill.kept, spill.label, 11) for spill in spilled(index)]
    assert not index.kept.put_away()
    later = spilling(spill_bytes=30)
    later.kept.adopt(labels)
    assert later.kept.take_orders() == ((), (1,))
    assert (len(later.kept), later.kept.disk_bytes) == (2, 22)
    assert later.kept.find(trace(100, 65)) is None
    end, system = later.kept.find(trace(200, 66, "b")), later.kept.find(trace(500, 65))
    assert end is not None
    assert system is not None
    assert (end.number, end.tokens, end.at_end, end.lasting) == (2, 66, True, False)
    assert (system.number, system.tokens, system.at_end, system.lasting) == (3, 64, False, True)
    assert later.keep(trace(900, 65), 64) == 4, "numbers of files are not given again"


def test_a_server_that_ends_sends_what_was_used_last_first_and_never_a_newer_one_away():
    index = spilling(budget_bytes=50, spill_bytes=22)
    numbers = [index.keep(trace(start, 65), 64) for start in (100, 200, 300, 400)]
    while index.kept.put_away():
        pass
    spills, drops = index.kept.take_orders()
    assert [spill.kept for spill in spills] == numbers[:1:-1]
    assert sorted(drops) == numbers[:2]


def test_a_state_larger_than_the_budget_is_never_made():
    assert not KeptLimits(budget_bytes=9, state_bytes=10).on
    index = Index(budget_bytes=9)
    assert index.kept.points(trace(0, 300), 0) == []
    assert index.kept.find(trace(0, 300)) is None


def test_points_are_the_grid_the_marks_the_last_tile_and_the_end():
    index = Index(grid_tokens=128)
    marked = trace(0, 450, marks=(70, 200, 449))
    assert index.kept.points(marked, 0) == [64, 128, 192, 256, 384, 448, 450]
    assert index.kept.points(marked, 192) == [256, 384, 448, 450]
    assert index.kept.points(trace(0, 63), 0) == []


@pytest.mark.parametrize("other", [{"namespace": "b"}, {"draft": False}])
def test_prefixes_are_named_by_namespace_and_drafting(other: dict[str, object]):
    ids = tuple(range(200))
    one, two = Trace(request("a", ids)), Trace(EngineRequest("b", ids, Sampling(), 8, **other))  # pyright: ignore[reportArgumentType]
    assert not set(one.chain) & set(two.chain)
    assert one.shared_tokens(two) == 0


def test_a_state_behind_other_tokens_is_not_found_by_its_last_tile():
    index, ids = Index(), tuple(range(200))
    assert index.keep(Trace(request("a", ids)), 128)
    other = Trace(request("b", (999, *ids[1:])))
    assert other.ids[64:128] == ids[64:128]
    assert index.kept.find(other) is None
    found = index.kept.find(Trace(request("c", (*ids[:150], 999))))
    assert found
    assert found.tokens == 128


def test_shared_tokens_count_whole_tiles_or_the_whole_prompt():
    ids = tuple(range(200))
    whole = Trace(request("a", ids))
    assert whole.shared_tokens(Trace(request("b", ids))) == 200
    assert whole.shared_tokens(Trace(request("b", (*ids[:150], 999, *ids[151:])))) == 128
    assert whole.shared_tokens(Trace(request("b", ids[:199]))) == 192
    assert whole.shared_tokens(Trace(request("b", (999, *ids[1:])))) == 0


def test_prompts_with_different_pictures_share_what_stands_before_the_picture():
    def shows(content: bytes) -> Trace:
        picture = Picture(140, 20, 1, 1, 1, hashlib.sha256(content).hexdigest(), content)
        return Trace(replace(request("p", tuple(range(200))), pictures=(picture,)))

    assert shows(b"a").shared_tokens(shows(b"a")) == 200
    assert shows(b"a").shared_tokens(shows(b"b")) == 128
    assert shows(b"a").key(150) != shows(b"b").key(150)


def test_the_ledger_knows_what_only_keepers_own_and_refuses_what_nobody_owns():
    ledger = Ledger(3)
    pages = ledger.take(2)
    ledger.keep(pages)
    ledger.share(pages[:1])
    assert (ledger.free, ledger.idle) == (1, 0)
    ledger.give_back(pages)
    assert (ledger.free, ledger.idle) == (1, 1)
    ledger.give_back(pages[:1])
    assert (ledger.free, ledger.idle) == (1, 2)
    with pytest.raises(ValueError, match="has no such owner"):
        ledger.give_back(pages)
    ledger.let_go(pages)
    assert (ledger.free, ledger.idle) == (3, 0)
    with pytest.raises(ValueError, match="has no such owner"):
        ledger.let_go(pages)
    with pytest.raises(ValueError, match="is free; needed"):
        ledger.share(pages)
