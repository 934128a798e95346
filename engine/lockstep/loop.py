"""The engine's loop: schedule, run, update, emit. Plain, or overlapped: what a step brought is told while the next one runs.

Messages arrive and are decoded in the channel's own thread either way. Knows the channel, the scheduler and the runner by their surface
only, so a test drives it with either replaced.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Protocol

from lockstep.core.errors import EngineRejected
from lockstep.core.grid import PAGE_TOKENS
from lockstep.core.messages import Cancel, FromEngine, Rejected, Round, Shutdown, Snapshot, Submit, ToEngine
from lockstep.core.plan import StepPlan, StepResult
from lockstep.core.rank_messages import Ran
from lockstep.core.types import RoundEvent
from lockstep.run.team import StepRunner
from lockstep.sched import Scheduler

SNAPSHOT_BUSY_S = 0.1
SNAPSHOT_IDLE_S = 1.0


class Channel(Protocol):
    """The engine's end of `lockstep.channel`."""

    @property
    def closed(self) -> bool: ...
    def send(self, message: FromEngine) -> None: ...
    def pending(self, wait_s: float) -> Iterable[object]: ...


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def count(self, plan: StepPlan, result: StepResult, events: list[RoundEvent]) -> None:
        """Add one step. Tokens behind the end of a reply were never given out and are not counted."""
        self.steps += 1
        self.prompt_tokens += sum(piece.count for piece in plan.prompts)
        self.generated_tokens += sum(len(event.token_ids) for event in events)
        self.drafted_tokens += sum(result.drafted.values())
        self.accepted_tokens += sum(len(result.tokens.get(window.request_id, (0,))) - 1 for window in plan.windows)


@dataclass(slots=True)
class EngineLoop:
    """Runs until it is told to shut down or its parent is gone.

    With a `worker`, a thread of its own for steps, the events of a step leave while the next one runs. Scheduler, channel and the order of
    what is told stay with the caller's thread, so both ways plan and emit the same. At its end it takes `put_away_s` at most to send kept
    prompt states to disk.
    """

    channel: Channel
    scheduler: Scheduler
    runner: StepRunner
    state_hashes: bool = False
    clock: Callable[[], float] = time.monotonic
    ran: Callable[[], tuple[Ran, ...]] = tuple
    worker: Executor | None = None
    put_away_s: float = 0.0
    counters: Counters = field(default_factory=Counters)
    _untold: list[RoundEvent] = field(default_factory=list)
    _deadline_s: float | None = None
    _snapshot_s: float = float("-inf")

    def run(self) -> None:
        """Serve until shutdown. What still runs at the deadline, or when the parent goes, ends as cancelled."""
        while not self.channel.closed and not (self._is_idle and self._deadline_s is not None):
            self.turn()
        self._emit(self.scheduler.cancel_all())
        self._put_away()
        self._report(idle=True, now=True)

    @property
    def _is_idle(self) -> bool:
        return not (self.scheduler.running or self.scheduler.waiting)

    def turn(self) -> None:
        """Take what arrived, waiting for it while idle, and run one step."""
        idle = self._is_idle
        if idle:
            self._tell()
        self._report(idle)
        self._take_messages(SNAPSHOT_IDLE_S if idle else 0.0)
        if self._deadline_s is not None and self.clock() >= self._deadline_s:
            self._emit(self.scheduler.cancel_all())
        if late := self.scheduler.expire():
            self._emit(late)
        self._step()

    def _step(self) -> None:
        plan = self.scheduler.plan()
        result = self._execute(plan)
        if not plan.has_rows:
            return
        events = self.scheduler.update(plan, result)
        self.counters.count(plan, result, events)
        if self.worker is None:
            self._emit(events)
        else:
            self._untold = self._with_hashes(events)

    def _execute(self, plan: StepPlan) -> StepResult:
        if self.worker is None:
            return self.runner.execute(plan)
        step = self.worker.submit(self.runner.execute, plan)
        self._tell()
        return step.result()

    def _emit(self, events: list[RoundEvent]) -> None:
        """Tell `events` now, behind what is still untold."""
        self._tell()
        self._untold = self._with_hashes(events)
        self._tell()

    def _tell(self) -> None:
        if self._untold:
            self.channel.send(Round(tuple(self._untold)))
            self._untold = []

    def _put_away(self) -> None:
        """One state a step: the writers of all ranks keep up, and what was used last is safe first. An engine whose front is gone ends at
        once, as the next server waits for its folder.
        """
        until_s = self.clock() + (0.0 if self.channel.closed else self.put_away_s)
        while self.clock() < until_s and self.scheduler.kept.put_away():
            self._execute(self.scheduler.plan())

    def _with_hashes(self, events: list[RoundEvent]) -> list[RoundEvent]:
        """Hashes are those of the states as they are now, so this comes before the next plan is run."""
        return [self._with_hash(event) for event in events] if self.state_hashes else events

    def _with_hash(self, event: RoundEvent) -> RoundEvent:
        """A request that ended before it was admitted has no state."""
        if event.finish is None or event.usage is None or not event.usage.rounds:
            return event
        return replace(event, state_hash=self.runner.state_hash(event.request_id))

    def _take_messages(self, wait_s: float) -> None:
        for message in self.channel.pending(wait_s):
            self._take(message)

    def _take(self, message: ToEngine | object) -> None:
        match message:
            case Submit(request):
                try:
                    self.scheduler.submit(request)
                except EngineRejected as error:
                    self.channel.send(Rejected(request.id, error.code, str(error), error.retry_after_s))
            case Cancel(request_id):
                event = self.scheduler.cancel(request_id)
                self._emit([event] if event else [])
            case Shutdown(deadline_s):
                self.scheduler.draining = True
                self._deadline_s = self.clock() + deadline_s
            case _:
                raise TypeError(f"front sent {type(message).__name__}, which only the engine sends")

    def _report(self, idle: bool, now: bool = False) -> None:
        """Idle, the loop wakes once a second and reports each time; busy, at most ten times a second."""
        at = self.clock()
        if not (idle or now) and at - self._snapshot_s < SNAPSHOT_BUSY_S:
            return
        self._snapshot_s = at
        totals, kept = self.counters, self.scheduler.kept
        self.channel.send(
            Snapshot(
                running=self.scheduler.running,
                waiting=self.scheduler.waiting,
                pool_free_tokens=self.scheduler.free_pages * PAGE_TOKENS,
                steps_total=totals.steps,
                prompt_tokens_total=totals.prompt_tokens,
                generated_tokens_total=totals.generated_tokens,
                drafted_tokens_total=totals.drafted_tokens,
                accepted_tokens_total=totals.accepted_tokens,
                kept_prompts=len(kept),
                kept_bytes=kept.memory_bytes,
                kept_disk_bytes=kept.disk_bytes,
                kept_asked_tokens_total=kept.totals.asked_tokens,
                kept_hit_tokens_total=kept.totals.hit_tokens,
                kept_evicted_total=kept.totals.evicted,
                kept_spilled_total=kept.totals.spilled,
                kept_returned_total=kept.totals.returned,
                kept_lost_total=kept.totals.lost,
                kept_waits_total=kept.totals.waits,
                ranks=self.ran(),
                paused=self.scheduler.paused,
                pauses_total=self.scheduler.pauses_total,
                waiting_tokens=self.scheduler.waiting_tokens,
                retry_after_s=self.scheduler.retry_after_s(),
            )
        )
