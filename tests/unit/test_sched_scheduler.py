"""The scheduler alone: a fake clock, a fake runner, no tensor."""

from __future__ import annotations

import pytest

from lockstep.core.errors import CONTEXT_EXCEEDED, DRAINING, QUEUE_FULL, EngineRejected
from lockstep.core.plan import StepPlan, StepResult
from lockstep.core.types import EngineRequest, FinishReason, RoundEvent, Sampling
from lockstep.sched import Scheduler, SchedulerLimits

STOP = 7


def request(name: str, prompt: int = 10, max_tokens: int = 5, **fields: object) -> EngineRequest:
    return EngineRequest(name, tuple(range(prompt)), Sampling(), max_tokens, frozenset({STOP}), **fields)  # type: ignore[arg-type]


def scheduler(**changes: int) -> Scheduler:
    limits = {"context": 1024, "slots": 2, "pool_pages": 32, "prompt_slice": 128, "max_queued": 8} | changes
    return Scheduler(SchedulerLimits(**limits), clock=lambda: 0.0)


def tokens_for(plan: StepPlan, token: int = 1) -> StepResult:
    asked = [piece.request_id for piece in plan.prompts if piece.last] + [window.request_id for window in plan.windows]
    return StepResult(dict.fromkeys(asked, (token,)))


def run(sched: Scheduler, token: int = 1) -> list[RoundEvent]:
    plan = sched.plan()
    return sched.update(plan, tokens_for(plan, token))


def test_a_prompt_is_cut_on_the_grid_only_and_its_last_slice_yields_the_first_token():
    sched = scheduler(prompt_slice=100)
    sched.submit(request("a", prompt=300))
    slices, events = [], []
    for _ in range(3):
        plan = sched.plan()
        slices += [(piece.start, piece.count, piece.last) for piece in plan.prompts]
        events = sched.update(plan, tokens_for(plan))
    assert slices == [(0, 128, False), (128, 128, False), (256, 44, True)]
    assert [event.token_ids for event in events] == [(1,)]


def test_running_replies_go_on_while_a_long_prompt_is_read():
    sched = scheduler()
    sched.submit(request("short", max_tokens=50))
    run(sched)
    sched.submit(request("long", prompt=900))
    for _ in range(5):
        plan = sched.plan()
        assert [window.request_id for window in plan.windows] == ["short"]
        assert sum(piece.count for piece in plan.prompts) <= 128
        sched.update(plan, tokens_for(plan))


def test_two_short_prompts_share_one_step():
    sched = scheduler()
    sched.submit(request("a", prompt=60))
    sched.submit(request("b", prompt=60))
    assert [piece.request_id for piece in sched.plan().prompts] == ["a", "b"]


def test_a_stop_token_ends_a_reply_and_belongs_to_it():
    sched = scheduler()
    sched.submit(request("a"))
    event = run(sched, token=STOP)[0]
    assert (event.token_ids, event.finish) == ((STOP,), FinishReason.STOP)


def test_min_tokens_and_ignore_eos_let_a_stop_token_pass():
    sched = scheduler()
    sched.submit(request("held", max_tokens=4, min_tokens=1))
    sched.submit(request("deaf", max_tokens=4, ignore_eos=True))
    assert [event.finish for event in run(sched, token=STOP)] == [None, None]
    assert {event.request_id: event.finish for event in run(sched, token=STOP)} == {"held": FinishReason.STOP, "deaf": None}


def test_drafted_tokens_behind_the_end_of_a_reply_are_cut():
    sched = scheduler()
    sched.submit(request("a", max_tokens=3))
    run(sched)
    plan = sched.plan()
    event = sched.update(plan, StepResult({"a": (1, 2, 3, 4)}))[0]
    assert (event.token_ids, event.finish) == ((1, 2), FinishReason.LENGTH)
    assert event.usage is not None
    assert event.usage.completion_tokens == 3


def test_slots_and_pages_of_an_ended_request_serve_the_next_plan():
    sched = scheduler(slots=1)
    sched.submit(request("a", max_tokens=1))
    sched.submit(request("b", max_tokens=1))
    assert run(sched)[0].finish is FinishReason.LENGTH
    plan = sched.plan()
    assert plan.releases == ("a",)
    assert [admission.request.id for admission in plan.admissions] == ["b"]


def test_a_request_waits_for_pages_even_when_a_slot_is_free():
    sched = scheduler(pool_pages=4)
    sched.submit(request("a", prompt=100, max_tokens=92))
    sched.submit(request("b", prompt=100, max_tokens=92))
    assert [admission.request.id for admission in sched.plan().admissions] == ["a"]
    assert (sched.waiting, sched.free_slots) == (1, 1)


@pytest.mark.parametrize(
    ("limits", "prompt", "max_tokens", "code", "words"),
    [
        ({"context": 128}, 100, 29, CONTEXT_EXCEEDED, "needs 129 tokens; this server holds 128"),
        ({"pool_pages": 1}, 60, 5, CONTEXT_EXCEEDED, "holds 64"),
        ({}, 0, 5, "bad_request", "0 prompt tokens"),
        ({}, 5, 0, "bad_request", "max_tokens 0"),
    ],
)
def test_what_can_never_run_is_refused_at_once_with_figures(limits: dict[str, int], prompt: int, max_tokens: int, code: str, words: str):
    with pytest.raises(EngineRejected, match=words) as caught:
        scheduler(**limits).submit(request("a", prompt, max_tokens))
    assert caught.value.code == code


def test_the_queue_is_bounded_but_a_free_slot_is_never_refused():
    sched = scheduler(slots=1, max_queued=0)
    sched.submit(request("a"))
    run(sched)
    with pytest.raises(EngineRejected) as caught:
        sched.submit(request("b"))
    assert caught.value.code == QUEUE_FULL


def test_a_burst_that_fits_slots_and_queue_is_taken_whole():
    sched = scheduler(slots=2, max_queued=3)
    for at in range(5):
        sched.submit(request(f"r{at}"))
    with pytest.raises(EngineRejected, match="queues 3"):
        sched.submit(request("one more"))


def test_a_draining_scheduler_takes_nothing_more():
    sched = scheduler()
    sched.draining = True
    with pytest.raises(EngineRejected) as caught:
        sched.submit(request("a"))
    assert caught.value.code == DRAINING


def test_an_id_in_use_is_refused():
    sched = scheduler()
    sched.submit(request("a"))
    with pytest.raises(EngineRejected, match="in use"):
        sched.submit(request("a"))


def test_a_row_that_cannot_be_sampled_ends_its_own_request_only():
    sched = scheduler()
    sched.submit(request("a"))
    sched.submit(request("b"))
    plan = sched.plan()
    events = sched.update(plan, StepResult({"a": (1,)}, {"b": "no finite logit"}))
    told = {event.request_id: (event.finish, event.error) for event in events}
    assert told == {"a": (None, None), "b": (FinishReason.FAILED, "no finite logit")}
    assert sched.running == 1


def windows_of(sched: Scheduler) -> dict[str, int]:
    plan = sched.plan()
    sched.update(plan, tokens_for(plan))
    return {window.request_id: window.max_drafts for window in plan.windows}


def test_the_rows_of_a_step_are_shared_evenly_and_what_one_cannot_use_goes_to_the_others():
    sched = scheduler(slots=4, max_drafts=15, prompt_slice=512)
    for name, reply in (("a", 90), ("b", 4), ("c", 90), ("d", 90)):
        sched.submit(request(name, max_tokens=reply))
    assert windows_of(sched) == {}
    assert windows_of(sched) == {"a": 8, "b": 2, "c": 9, "d": 9}


def test_a_window_leaves_room_for_the_token_behind_its_last_draft():
    sched = scheduler(max_drafts=15)
    sched.submit(request("a", max_tokens=4))
    assert [windows_of(sched) for _ in range(4)] == [{}, {"a": 2}, {"a": 1}, {"a": 0}]


def test_a_request_without_drafts_gets_one_row_beside_others():
    sched = scheduler(max_drafts=7)
    sched.submit(request("serial", max_tokens=50, draft=False))
    sched.submit(request("drafted", max_tokens=50))
    windows_of(sched)
    assert windows_of(sched) == {"serial": 0, "drafted": 7}


def test_drafts_run_and_drafts_kept_reach_the_usage():
    sched = scheduler(max_drafts=7)
    sched.submit(request("a", max_tokens=4))
    run(sched)
    event = sched.update(sched.plan(), StepResult({"a": (1, 1, 1)}, drafted={"a": 2}))[0]
    assert event.usage is not None
    assert (event.usage.rounds, event.usage.drafted_tokens, event.usage.accepted_tokens, event.usage.completion_tokens) == (2, 2, 2, 4)
