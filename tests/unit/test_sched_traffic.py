"""The scheduler under random traffic: all end once, nothing leaks, every row has its page, turns are fair, nobody waits for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lockstep.core.errors import QUEUE_FULL, EngineRejected
from lockstep.core.plan import StepPlan, StepResult
from lockstep.core.types import PRIORITIES, PRIORITY_TOKENS, EngineRequest, FinishReason, RoundEvent, Sampling
from lockstep.sched import KeptLimits, Scheduler, SchedulerLimits
from lockstep.sched.order import FairOrder, cost_tokens

STOP, PAGE, POOL, SLOTS = 7, 64, 12, 3
KEPT = KeptLimits(budget_bytes=6, grid_tokens=128, least_tokens=1)


class Pages:
    """What a runner would know: pages and tokens of each request. Asserts that a plan is possible."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.slots: dict[str, int] = {}
        self.owned: dict[str, list[int]] = {}
        self.tokens: dict[str, int] = {}
        self.paused: set[str] = set()

    def follow(self, plan: StepPlan) -> None:
        """Apply what the plan says of slots and pages, in the order of `StepPlan`."""
        for name in (*plan.releases, *plan.pauses):
            self.owned.pop(name, None)
            self.slots.pop(name, None)
        self.paused = (self.paused | set(plan.pauses)) - set(plan.releases)
        for resume in plan.resumes:
            self.paused.remove(resume.request_id)
            self._enter(resume.request_id, resume.slot, resume.pages)
        for admission in plan.admissions:
            self.tokens[admission.request.id] = len(admission.request.prompt_ids)
            self._enter(admission.request.id, admission.slot, admission.pages)
        for growth in plan.growths:
            assert growth.pages
            self.owned[growth.request_id] += growth.pages
        for piece in plan.prompts:
            assert len(self.owned[piece.request_id]) * PAGE >= piece.start + piece.count
        for window in plan.windows:
            assert len(self.owned[window.request_id]) * PAGE >= self.tokens[window.request_id] + window.max_drafts
        pages = [page for owned in self.owned.values() for page in owned]
        assert all(0 <= page < POOL for page in pages)
        assert self.shared or len(pages) == len(set(pages))
        assert sorted(self.slots.values()) == sorted(set(self.slots.values()))

    def _enter(self, name: str, slot: int, pages: tuple[int, ...]) -> None:
        assert name not in self.owned
        self.owned[name], self.slots[name] = list(pages), slot
        assert len(pages) * PAGE >= self.tokens[name]


ARRIVAL = st.tuples(
    st.sampled_from([60, 1, 64, 65, 190, 400]),
    st.sampled_from([260, 1, 2, 63, 130, 320]),
    st.sampled_from(PRIORITIES),
    st.sampled_from("ab"),
    st.sampled_from([0.0, 0.0, 0.0, 3.0]),
    st.booleans(),
)


class Traffic(RuleBasedStateMachine):
    """Random arrivals, cancels, deadlines, priorities, owners and drafts. Some prompts begin alike, so kept states are used."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.submitted: dict[str, EngineRequest] = {}
        self.ended: list[str] = []
        self.tokens: Counter[str] = Counter()
        self.refusals: list[EngineRejected] = []

    @initialize(keeps=st.booleans())
    def start(self, keeps: bool) -> None:
        limits = SchedulerLimits(POOL * PAGE, SLOTS, POOL, 128, 5, max_drafts=7, max_queued_tokens=1500)
        self.sched = Scheduler(limits, lambda: self.now, KEPT if keeps else None)
        self.pages = Pages(keeps)

    @rule(arrivals=st.lists(ARRIVAL, min_size=1, max_size=5))
    def arrive(self, arrivals: list[tuple[int, int, int, str, float, bool]]) -> None:
        for prompt, reply, priority, owner, deadline_s, alike in arrivals:
            name, first = f"r{len(self.submitted) + len(self.refusals)}", 0 if alike else len(self.submitted)
            ids = (first, *range(1, prompt))
            wanted = EngineRequest(name, ids, Sampling(), reply, frozenset({STOP}), owner=owner, priority=priority, deadline_s=deadline_s)
            try:
                self.sched.submit(wanted)
            except EngineRejected as error:
                self.refusals.append(error)
                continue
            self.submitted[name] = wanted

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.submitted:
            name = data.draw(st.sampled_from(sorted(self.submitted)))
            event = self.sched.cancel(name)
            assert (event is None) == (name in self.ended)
            self.take([event] if event else [])

    @rule(data=st.data(), steps=st.integers(1, 30), stops=st.integers(0, 40))
    def run(self, data: st.DataObject, steps: int, stops: int) -> None:
        for at in range(steps):
            self.step(data.draw(st.integers(0, 7)) if at < 3 else at % 8, STOP if stops == at else 1)

    @rule(data=st.data())
    def leave_in_mid_step(self, data: st.DataObject) -> None:
        """A cancel that arrives while the step runs."""
        plan = self.plan()
        if self.submitted:
            event = self.sched.cancel(data.draw(st.sampled_from(sorted(self.submitted))))
            self.take([event] if event else [])
        self.take(self.sched.update(plan, self.result(plan, 2, 1)))

    def step(self, right: int, token: int) -> None:
        self.now += 0.1
        self.take(self.sched.expire())
        plan = self.plan()
        self.take(self.sched.update(plan, self.result(plan, right, token)))

    def plan(self) -> StepPlan:
        plan = self.sched.plan()
        self.pages.follow(plan)
        assert plan.has_rows or not (self.sched.running or self.sched.waiting)
        return plan

    def result(self, plan: StepPlan, right: int, token: int) -> StepResult:
        """Up to `right` drafts of each window were right."""
        chosen = {piece.request_id: (token,) for piece in plan.prompts if piece.last}
        return StepResult(chosen | {window.request_id: (token,) * (1 + min(right, window.max_drafts)) for window in plan.windows})

    def take(self, events: list[RoundEvent]) -> None:
        for event in events:
            name, wanted = event.request_id, self.submitted[event.request_id]
            self.tokens[name] += len(event.token_ids)
            self.pages.tokens[name] = len(wanted.prompt_ids) + self.tokens[name]
            assert event.finish is not FinishReason.FAILED
            if event.finish is None:
                continue
            self.ended.append(name)
            assert event.finish is not FinishReason.EXPIRED or (wanted.deadline_s and not self.tokens[name])
            if event.finish is FinishReason.LENGTH and not wanted.deadline_s:
                assert self.tokens[name] == wanted.max_tokens

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        assert len(self.ended) == len(set(self.ended))
        assert self.sched.running + self.sched.waiting == len(self.submitted) - len(self.ended)
        assert self.sched.free_slots + self.sched.running - self.sched.paused == SLOTS

    def teardown(self) -> None:
        for at in range(20_000):
            if not (self.sched.running or self.sched.waiting):
                break
            self.step(at % 3, 1)
        assert all(error.code == QUEUE_FULL and 1 <= error.retry_after_s <= 600 for error in self.refusals)
        assert sorted(self.ended) == sorted(self.submitted)
        assert (self.sched.free_slots, self.sched.free_pages, self.sched.paused) == (SLOTS, POOL, 0)


Traffic.TestCase.settings = settings(max_examples=120, stateful_step_count=30)
TestTraffic = Traffic.TestCase


def request(name: str, owner: str, priority: int, prompt: int, reply: int) -> EngineRequest:
    return EngineRequest(name, (0,) * prompt, Sampling(), reply, owner=owner, priority=priority)


def entered(sched: Scheduler) -> list[EngineRequest]:
    """Who enters with the next step, which also ends every request that has one token to give."""
    plan = sched.plan()
    asked = [piece.request_id for piece in plan.prompts if piece.last] + [window.request_id for window in plan.windows]
    sched.update(plan, StepResult(dict.fromkeys(asked, (1,))))
    return [admission.request for admission in plan.admissions]


def server(slots: int) -> Scheduler:
    return Scheduler(SchedulerLimits(4096, slots, 64 * slots, 4096, 10_000, max_queued_tokens=1 << 30), lambda: 0.0)


SIZES = st.lists(st.tuples(st.integers(1, 900), st.integers(1, 90)), min_size=8, max_size=20)


@settings(max_examples=40)
@given(sizes=st.tuples(SIZES, SIZES, SIZES), slots=st.integers(1, 4))
def test_owners_who_all_wait_get_equal_shares_up_to_a_request_each(sizes: tuple[list[tuple[int, int]], ...], slots: int):
    sched = server(slots)
    wanted = [request(f"{owner}{at}", owner, 0, *size) for owner, own in zip("abc", sizes, strict=True) for at, size in enumerate(own)]
    most = max(map(cost_tokens, wanted))
    left = Counter(one.owner for one in wanted)
    served: Counter[str] = Counter()
    for one in wanted:
        sched.submit(one)
    while min(left.values()):
        for one in entered(sched):
            served[one.owner] += cost_tokens(one)
            left[one.owner] -= 1
            if min(left.values()):
                assert max(served[owner] for owner in "abc") - min(served[owner] for owner in "abc") <= 2 * most


@pytest.mark.parametrize(("behind", "ahead"), [(8, -8), (4, 0), (1, 0)])
@pytest.mark.parametrize("slots", [1, 3])
def test_whoever_stands_back_enters_after_a_bounded_amount_of_later_work(behind: int, ahead: int, slots: int):
    sched, cost, owners = server(slots), 110, ("x", "y")
    for owner in owners:
        sched.submit(request(f"{owner}-before", owner, ahead, 100, 10))
    sched.submit(request("patient", "z", behind, 100, 10))
    passed, waiting = Counter[str](), dict.fromkeys(owners, 1)
    while True:
        for owner in owners:
            for at in range(waiting[owner], 3):
                sched.submit(request(f"{owner}-{passed[owner]}-{at}", owner, ahead, 100, 10))
            waiting[owner] = 3
        names = entered(sched)
        if any(one.id == "patient" for one in names):
            break
        passed.update(one.owner for one in names)
        waiting = {owner: 3 - sum(one.owner == owner for one in names) for owner in owners}
    for owner in owners:
        assert (behind - ahead) * PRIORITY_TOKENS - cost <= passed[owner] * cost <= (behind - ahead) * PRIORITY_TOKENS + (1 + slots) * cost


def test_an_owner_is_not_charged_for_requests_that_left_the_queue():
    order = FairOrder()
    long, short = request("a", "x", 0, 5000, 9), request("b", "x", 0, 10, 9)
    order.arrive(long)
    order.leave(long)
    assert order.arrive(short) == order.arrive(request("c", "y", 0, 10, 9)) == 0


def test_owners_who_are_not_behind_are_forgotten():
    order = FairOrder()
    for at in range(100):
        order.begin(order.arrive(request("a", f"key {at}", 0, 10, 9)))
    order.begin(order.now + 1000)
    assert not order._next
