"""The loop, plain and overlapped, on a scripted inbox, a fake clock and a runner without a model."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from lockstep.channel.child import ChildChannel
from lockstep.channel.frames import HEADER_BYTES, FrameError, body_length, decode
from lockstep.core.messages import Cancel, FromEngine, Loading, Rejected, Round, Shutdown, Snapshot, Submit
from lockstep.core.plan import StepPlan, StepResult
from lockstep.core.types import EngineRequest, FinishReason, RoundEvent, Sampling
from lockstep.loop import EngineLoop
from lockstep.sched import Scheduler, SchedulerLimits

Inbox = Callable[[int], list[object]]


class OneTokenRunner:
    """Every row gets token 1; remembers its plans."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        asked = [piece.request_id for piece in plan.prompts if piece.last] + [window.request_id for window in plan.windows]
        return StepResult(dict.fromkeys(asked, (1,)))

    def state_hash(self, request_id: str) -> str:
        return f"hash of {request_id}"


@dataclass
class FakeChannel:
    """Asks `inbox(turn)` for what arrives before each step; the parent goes after `turns` of them. Time passes 10 ms a turn."""

    inbox: Inbox
    turns: int = 10_000
    sent: list[FromEngine] = field(default_factory=list)
    turn: int = 0

    @property
    def closed(self) -> bool:
        return self.turn >= self.turns

    def clock(self) -> float:
        return self.turn * 0.01

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)

    def pending(self, wait_s: float) -> Iterable[object]:
        self.turn += 1
        return self.inbox(self.turn)

    def events(self) -> list[RoundEvent]:
        return [event for message in self.sent if isinstance(message, Round) for event in message.events]

    def snapshots(self) -> list[Snapshot]:
        return [message for message in self.sent if isinstance(message, Snapshot)]


def request(name: str, prompt: int = 10, max_tokens: int = 5) -> EngineRequest:
    return EngineRequest(name, tuple(range(prompt)), Sampling(), max_tokens)


Run = Callable[..., tuple[FakeChannel, OneTokenRunner]]


@pytest.fixture(params=["plain", "overlapped"])
def worker(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    """The thread an overlapped loop runs its steps in; None for the plain loop."""
    if request.param == "plain":
        yield None
        return
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def run(worker: Executor | None) -> Run:
    """Serve an inbox, messages by turn, and return what was sent and which plans ran."""

    def serve(
        inbox: dict[int, list[object]], turns: int = 200, state_hashes: bool = False, slots: int = 2
    ) -> tuple[FakeChannel, OneTokenRunner]:
        channel, runner = FakeChannel(lambda turn: inbox.get(turn, []), turns), OneTokenRunner()
        limits = SchedulerLimits(context=1024, slots=slots, pool_pages=64, prompt_slice=128, max_queued=4)
        EngineLoop(channel, Scheduler(limits, channel.clock), runner, state_hashes, channel.clock, worker=worker).run()
        return channel, runner

    return serve


def test_a_request_gets_its_rounds_its_usage_and_its_hash_once(run: Run):
    channel, _ = run({1: [Submit(request("a", max_tokens=3))]}, state_hashes=True)
    events = channel.events()
    assert [event.token_ids for event in events] == [(1,), (1,), (1,)]
    assert [event.finish for event in events] == [None, None, FinishReason.LENGTH]
    assert [event.state_hash for event in events] == [None, None, "hash of a"]
    assert events[-1].usage is not None
    assert (events[-1].usage.prompt_tokens, events[-1].usage.completion_tokens, events[-1].usage.rounds) == (10, 3, 3)


def test_a_cancel_frees_the_slot_before_the_next_step(run: Run):
    channel, runner = run({1: [Submit(request("a", max_tokens=500)), Submit(request("b"))], 5: [Cancel("a")]}, slots=1)
    at = next(index for index, plan in enumerate(runner.plans) if plan.releases)
    assert runner.plans[at].releases == ("a",)
    assert [admission.request.id for admission in runner.plans[at].admissions] == ["b"]
    assert at == 4, "the plan of the turn the cancel arrived in"
    assert [event.finish for event in channel.events() if event.request_id == "a"][-1] is FinishReason.CANCELLED


def test_a_request_cancelled_in_the_queue_ends_without_a_state(run: Run):
    channel, _ = run({1: [Submit(request("a", max_tokens=100)), Submit(request("b"))], 3: [Cancel("b")]}, slots=1, state_hashes=True)
    (event,) = [event for event in channel.events() if event.request_id == "b"]
    assert (event.finish, event.state_hash) == (FinishReason.CANCELLED, None)


def test_an_unknown_cancel_says_nothing(run: Run):
    channel, _ = run({1: [Cancel("ghost")]}, turns=3)
    assert channel.events() == []


def test_a_refused_request_is_answered_by_its_own_rejection(run: Run):
    channel, _ = run({1: [Submit(request("a", prompt=1024))]}, turns=3)
    (answer,) = [message for message in channel.sent if isinstance(message, Rejected)]
    assert (answer.request_id, answer.code) == ("a", "context_length_exceeded")


def test_shutdown_finishes_what_ends_in_time_and_cuts_the_rest(run: Run):
    arrivals: list[object] = [Submit(request("short", max_tokens=5)), Submit(request("long", max_tokens=900))]
    channel, _ = run({1: arrivals, 2: [Shutdown(0.2)]}, turns=1000)
    finishes = {event.request_id: event.finish for event in channel.events() if event.finish}
    assert finishes == {"short": FinishReason.LENGTH, "long": FinishReason.CANCELLED}
    assert channel.turn == pytest.approx(22, abs=2), "200 ms after the word, in turns of 10 ms"


def test_a_parent_that_is_gone_ends_the_loop(run: Run):
    channel, _ = run({1: [Submit(request("a", max_tokens=900))]}, turns=7)
    assert [event.finish for event in channel.events()][-1] is FinishReason.CANCELLED


def test_busy_snapshots_come_ten_times_a_second_and_never_fall(run: Run):
    channel, runner = run({1: [Submit(request("a", prompt=300, max_tokens=90))]}, turns=93)
    busy = [snapshot for snapshot in channel.snapshots() if snapshot.running]
    assert 8 <= len(busy) <= 11
    totals = [(one.steps_total, one.prompt_tokens_total, one.generated_tokens_total) for one in channel.snapshots()]
    assert totals == sorted(totals)
    assert totals[-1] == (sum(plan.has_rows for plan in runner.plans), 300, 90)
    assert (busy[0].pool_free_tokens, channel.snapshots()[-1].pool_free_tokens) == (59 * 64, 64 * 64)


def test_a_message_only_the_engine_sends_is_an_error(run: Run):
    with pytest.raises(TypeError, match="Loading"):
        run({1: [Loading("x", 0.0)]})


def test_one_step_costs_less_than_a_third_of_a_millisecond_beside_the_model():
    """Processor time of the loop, the scheduler and real frames on a real socket, four replies at once."""
    ours, theirs = socket.socketpair()
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: ours.recv(1 << 20), b"")], daemon=True)
    drain.start()
    child = ChildChannel(theirs)
    scheduler = Scheduler(SchedulerLimits(1 << 20, 4, 1 << 15, 512, 64), time.monotonic)
    for name in "abcd":
        scheduler.submit(request(name, max_tokens=100_000))
    loop = EngineLoop(child, scheduler, OneTokenRunner())
    steps = 500
    best = min(_seconds_of(loop, steps) for _ in range(3))
    ours.shutdown(socket.SHUT_RDWR)
    assert best / steps < 0.0003


def _seconds_of(loop: EngineLoop, steps: int) -> float:
    started = time.thread_time()
    for _ in range(steps):
        loop.turn()
    return time.thread_time() - started


def test_an_overlapped_loop_tells_a_step_while_the_next_one_runs():
    class Waits(OneTokenRunner):
        """The second step ends only once the first one has been told."""

        told = threading.Event()

        def execute(self, plan: StepPlan) -> StepResult:
            if len(self.plans) == 1:
                assert self.told.wait(5.0)
            return super().execute(plan)

    class Tells(FakeChannel):
        def send(self, message: FromEngine) -> None:
            super().send(message)
            if isinstance(message, Round):
                runner.told.set()

    channel, runner = Tells(lambda turn: [Submit(request("a", max_tokens=3))] if turn == 1 else [], 20), Waits()
    limits = SchedulerLimits(context=1024, slots=1, pool_pages=64, prompt_slice=128, max_queued=4)
    with ThreadPoolExecutor(1) as thread:
        EngineLoop(channel, Scheduler(limits, channel.clock), runner, clock=channel.clock, worker=thread).run()
    assert [event.token_ids for event in channel.events()] == [(1,), (1,), (1,)]


def test_the_real_channel_closes_the_loop_when_the_front_hangs_up(worker: Executor | None):
    ours, theirs = socket.socketpair()
    scheduler = Scheduler(SchedulerLimits(1024, 1, 16, 64, 4), time.monotonic)
    loop = EngineLoop(ChildChannel(theirs), scheduler, OneTokenRunner(), worker=worker)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    first = ours.recv(HEADER_BYTES, socket.MSG_WAITALL)
    assert isinstance(decode(ours.recv(body_length(first), socket.MSG_WAITALL)), Snapshot)
    ours.close()
    thread.join(timeout=2.0)
    assert not thread.is_alive()


def test_bytes_from_the_front_that_are_no_message_end_the_loop_with_a_frame_error():
    ours, theirs = socket.socketpair()
    child = ChildChannel(theirs)
    ours.sendall(b"\x00\x00\x00\x01\xc1")
    with pytest.raises(FrameError, match="1 bytes"):
        list(child.pending(2.0))
    ours.close()
