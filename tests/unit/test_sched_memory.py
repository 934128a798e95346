"""Who owns slots and pages: growth, headroom, pauses, deadlines, and how long a refused request should wait. Fake clock, no tensor."""

from __future__ import annotations

import pytest

from lockstep.core.errors import BAD_REQUEST, QUEUE_FULL, EngineRejected
from lockstep.core.plan import StepPlan, StepResult
from lockstep.core.types import EngineRequest, FinishReason, RoundEvent, Sampling
from lockstep.sched import Scheduler, SchedulerLimits
from lockstep.sched.retry import Departures


class Served:
    """A scheduler whose steps each take a second and give every row token 1."""

    def __init__(self, **changes: int) -> None:
        limits = {"context": 4096, "slots": 2, "pool_pages": 16, "prompt_slice": 128, "max_queued": 8} | changes
        self.now = 0.0
        self.sched = Scheduler(SchedulerLimits(**limits), clock=lambda: self.now)

    def submit(self, name: str, prompt: int, reply: int, **fields: object) -> None:
        self.sched.submit(EngineRequest(name, tuple(range(prompt)), Sampling(), reply, **fields))  # type: ignore[arg-type]

    def step(self) -> tuple[StepPlan, list[RoundEvent]]:
        self.now += 1.0
        plan = self.sched.plan()
        asked = [piece.request_id for piece in plan.prompts if piece.last] + [window.request_id for window in plan.windows]
        return plan, self.sched.update(plan, StepResult(dict.fromkeys(asked, (1,))))

    def until_paused(self) -> StepPlan:
        """The first plan that pauses somebody."""
        return next(plan for plan, _ in (self.step() for _ in range(2000)) if plan.pauses)


def two_that_fill_the_pool() -> Served:
    """Each fits the pool of 16 pages alone, both together do not."""
    served = Served()
    served.submit("first", 60, 800)
    served.submit("second", 60, 800)
    return served


def test_a_reply_gets_a_page_for_every_64_tokens_and_not_before():
    served = Served()
    served.submit("a", 60, 200)
    assert [len(admission.pages) for admission in served.step()[0].admissions] == [1]
    grown = {at: plan.growths[0].pages for at in range(2, 200) if (plan := served.step()[0]).growths}
    # Step 2 runs the token at position 60, so step 6 is the first to write behind the first page.
    assert list(grown) == [6, 70, 134, 198]
    assert all(len(pages) == 1 for pages in grown.values())


def test_when_pages_run_out_the_last_in_order_is_paused_and_comes_back_with_all_it_had():
    served = two_that_fill_the_pool()
    plan = served.until_paused()
    assert plan.pauses == ("second",)
    assert [growth.request_id for growth in plan.growths] == ["first"]
    assert [window.request_id for window in plan.windows] == ["first"]
    assert (served.sched.running, served.sched.paused, served.sched.free_slots) == (2, 1, 1)
    ended: list[str] = []
    resumed = []
    while not ended:
        plan, events = served.step()
        resumed += plan.resumes
        ended += [event.request_id for event in events if event.finish]
    assert ended == ["first"]
    assert resumed == []
    plan, _ = served.step()
    (resume,) = plan.resumes
    assert plan.releases == ("first",)
    assert (resume.request_id, len(resume.pages)) == ("second", 9)
    assert [window.request_id for window in plan.windows] == ["second"]
    assert served.sched.pauses_total == 1


def test_nobody_passes_a_paused_request_that_comes_before():
    served = two_that_fill_the_pool()
    served.until_paused()
    served.submit("small", 10, 1)
    served.submit("urgent", 10, 1, priority=-8)
    entered = [admission.request.id for _ in range(20) for admission in served.step()[0].admissions]
    assert entered == ["urgent"]
    assert (served.sched.paused, served.sched.waiting) == (1, 1)


def entering(served: Served) -> list[str]:
    """Who enters from now on, in order."""
    names: list[str] = []
    while served.sched.running or served.sched.waiting:
        names += [admission.request.id for admission in served.step()[0].admissions]
    return names


@pytest.mark.parametrize("refused", [False, True])
def test_requests_that_never_entered_cost_their_owner_no_turn(refused: bool):
    served = Served(slots=1, max_queued_tokens=500 if refused else 5000)
    served.submit("running", 10, 3)
    served.step()
    for at in range(4):
        if refused:
            with pytest.raises(EngineRejected):
                served.submit(f"gone{at}", 600, 1, owner="x")
        else:
            served.submit(f"gone{at}", 600, 1, owner="x")
            served.sched.cancel(f"gone{at}")
    served.submit("of x", 10, 1, owner="x")
    served.submit("of y", 10, 1, owner="y")
    assert entering(served) == ["of x", "of y"]


def test_an_owner_that_was_away_gets_no_credit_for_it():
    served = Served(slots=1)
    for at in range(20):
        served.submit(f"early {at}", 100, 1, owner="x")
        served.step()
    served.submit("running", 10, 9, owner="x")
    served.step()
    for at in range(3):
        served.submit(f"x{at}", 100, 1, owner="x")
    for at in range(3):
        served.submit(f"y{at}", 100, 1, owner="y")
    assert entering(served) == ["y0", "x0", "y1", "x1", "y2", "x2"]


def test_a_higher_priority_that_came_later_pauses_the_lower_one():
    served = Served()
    served.submit("early", 60, 800, priority=1)
    served.submit("urgent", 60, 800, priority=-1)
    assert served.until_paused().pauses == ("early",)


def test_a_prompt_is_paused_in_its_middle_and_goes_on_there():
    served = Served(context=8192, slots=5, pool_pages=79, prompt_slice=64)
    for name in ("a", "b", "c", "d"):
        served.submit(name, 60, 300)
    served.submit("reader", 70 * 64, 1)
    read, paused_at = [], []
    while served.sched.running or served.sched.waiting:
        plan, _ = served.step()
        paused_at += [len(read) for name in plan.pauses if name == "reader"]
        read += [piece.start for piece in plan.prompts if piece.request_id == "reader"]
    assert paused_at == [66]
    assert read == list(range(0, 70 * 64, 64))


def test_nobody_enters_without_headroom_for_those_who_run():
    served = Served(pool_pages=64)
    served.submit("a", 64 * 30, 1000)
    served.submit("b", 64 * 27, 1000)
    # 7 pages are left, and each may want 4 soon.
    assert [[admission.request.id for admission in served.step()[0].admissions] for _ in range(3)] == [["a"], [], []]
    served = Served(pool_pages=64)
    served.submit("a", 64 * 30, 1000)
    served.submit("b", 64 * 26, 1000)
    assert [[admission.request.id for admission in served.step()[0].admissions] for _ in range(2)] == [["a", "b"], []]


def test_drafts_take_no_page_that_is_not_there_and_pause_nobody():
    served = Served(pool_pages=4, max_drafts=7)
    served.submit("a", 60, 190)
    served.submit("b", 60, 190)
    plan = served.until_paused()
    assert plan.pauses == ("b",)
    assert [window.max_drafts for window in plan.windows] == [7]
    served = Served(pool_pages=4, max_drafts=7)
    served.submit("a", 60, 190)
    served.submit("b", 60, 190)
    drafts = [[window.max_drafts for window in served.step()[0].windows] for _ in range(69)]
    assert drafts == [[], *[[7, 7]] * 61, *([left, left] for left in range(6, -1, -1))]


@pytest.mark.parametrize("paused", [False, True])
def test_a_cancel_ends_a_request_wherever_it_is_and_frees_all_it_had(paused: bool):
    served = two_that_fill_the_pool()
    served.until_paused()
    name, other = ("second", "first") if paused else ("first", "second")
    event = served.sched.cancel(name)
    assert event is not None
    assert event.finish is FinishReason.CANCELLED
    assert served.sched.running == 1
    plan, _ = served.step()
    assert plan.releases == (name,)
    assert [window.request_id for window in plan.windows] == [other]
    while served.sched.running:
        served.step()
    assert (served.sched.free_slots, served.sched.free_pages) == (2, 16)


def test_a_cancel_while_a_step_runs_is_passed_over_by_its_result():
    served = Served()
    served.submit("a", 10, 5)
    served.submit("b", 10, 5)
    plan = served.sched.plan()
    served.sched.cancel("a")
    events = served.sched.update(plan, StepResult({"a": (1,), "b": (1,)}))
    assert [event.request_id for event in events] == ["b"]
    assert served.sched.plan().releases == ("a",)


def test_deadlines_count_from_arrival_and_cut_replies_but_refuse_those_without_a_token():
    served = Served(slots=1)
    served.submit("replying", 10, 500, deadline_s=5.0)
    served.submit("queued", 10, 500, deadline_s=3.5)
    served.submit("patient", 10, 500)
    told = {}
    for _ in range(8):
        served.step()
        told |= {event.request_id: (served.now, event.finish) for event in served.sched.expire()}
    assert told == {"replying": (5.0, FinishReason.LENGTH), "queued": (4.0, FinishReason.EXPIRED)}
    assert (served.sched.running, served.sched.waiting) == (1, 0)


def test_a_deadline_passes_for_a_paused_request_too():
    served = Served()
    served.submit("first", 60, 800)
    served.submit("second", 60, 800, deadline_s=500.0)
    served.until_paused()
    served.now = 501.0
    assert [(event.request_id, event.finish) for event in served.sched.expire()] == [("second", FinishReason.LENGTH)]
    assert (served.sched.running, served.sched.paused) == (1, 0)


def test_requests_that_stand_back_leave_a_slot_to_the_others():
    served = Served(slots=3, pool_pages=64)
    for name in ("b1", "b2", "b3"):
        served.submit(name, 10, 50, priority=4)
    assert [admission.request.id for admission in served.step()[0].admissions] == ["b1", "b2"]
    served.submit("normal", 10, 50)
    assert [admission.request.id for admission in served.step()[0].admissions] == ["normal"]


def test_prompts_share_a_step_evenly_so_that_a_short_one_passes_a_long_one():
    served = Served(slots=3, pool_pages=64, prompt_slice=256)
    served.submit("long", 1000, 1)
    served.submit("short", 100, 1)
    served.submit("third", 1000, 1)
    plans = [served.step()[0] for _ in range(2)]
    assert [[(piece.request_id, piece.count) for piece in plan.prompts] for plan in plans] == [
        [("long", 64), ("short", 64), ("third", 128)],
        [("long", 128), ("short", 36), ("third", 64)],
    ]


def test_more_prompts_than_tiles_are_read_in_order():
    served = Served(slots=3, pool_pages=64, prompt_slice=64)
    for name in ("a", "b", "c"):
        served.submit(name, 100, 1)
    read = [[piece.request_id for piece in served.step()[0].prompts] for _ in range(6)]
    assert read == [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]


def test_a_queue_of_tokens_is_full_before_it_is_full_of_requests():
    served = Served(slots=1, max_queued_tokens=100)
    served.submit("a", 300, 5)
    served.step()
    served.submit("b", 60, 5)
    with pytest.raises(EngineRejected, match=r"1 requests with 60 prompt tokens are waiting, this one has 41; .* 100 tokens") as caught:
        served.submit("c", 41, 5)
    assert caught.value.code == QUEUE_FULL
    served.submit("d", 40, 5)
    assert (served.sched.waiting, served.sched.waiting_tokens) == (2, 100)


def test_a_refused_request_is_told_how_long_a_place_takes():
    served = Served(slots=2, max_queued=1)
    for name in ("a", "b", "c"):
        served.submit(name, 10, 30)
    for _ in range(12):
        served.step()
    with pytest.raises(EngineRejected) as caught:
        served.submit("d", 10, 30)
    # Nobody has ended yet; the oldest has run for 11 of these seconds, and two slots free one every half of that.
    assert caught.value.retry_after_s == 6
    while served.sched.running == 2:
        served.step()
    served.submit("d", 10, 30)
    served.step()
    served.submit("e", 10, 30)
    with pytest.raises(EngineRejected) as caught:
        served.submit("f", 10, 30)
    assert caught.value.retry_after_s == 15


def test_the_estimate_follows_what_is_measured_within_bounds():
    departures = Departures(slots=4)
    assert departures.wait_s(1, oldest_stay_s=0.0) == 1
    departures.ended(40.0)
    assert (departures.wait_s(1, 0.0), departures.wait_s(3, 0.0), departures.wait_s(1000, 0.0)) == (10, 30, 600)
    for _ in range(50):
        departures.ended(8.0)
    assert departures.wait_s(1, 0.0) == 3


@pytest.mark.parametrize("fields", [{"priority": 9}, {"priority": -9}, {"deadline_s": -1.0}])
def test_priorities_and_deadlines_out_of_bounds_are_refused(fields: dict[str, object]):
    with pytest.raises(EngineRejected, match="needed: -8 to 8, and 0 or more") as caught:
        Served().submit("a", 10, 5, **fields)
    assert caught.value.code == BAD_REQUEST
