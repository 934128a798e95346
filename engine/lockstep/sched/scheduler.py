"""Admission, prompt slices and decode windows, pauses and deadlines: what the next step runs.

Requests wait in the order of `sched.order`, grow as `sched.memory` lets them, begin from kept states as `sched.reuse` finds them. Knows no
tensor; the clock is handed in.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lockstep.core.errors import BAD_REQUEST, CONTEXT_EXCEEDED, DRAINING, QUEUE_FULL, EngineRejected
from lockstep.core.grid import PAGE_TOKENS, pages_of
from lockstep.core.plan import Admission, Growth, PromptSlice, Resume, StepPlan, StepResult, StepWindow
from lockstep.core.types import PRIORITIES, EngineRequest, FinishReason, RoundEvent
from lockstep.sched.kept import KeptLimits
from lockstep.sched.live import Live
from lockstep.sched.memory import Memory
from lockstep.sched.order import FairOrder, rank
from lockstep.sched.retry import Departures
from lockstep.sched.reuse import PromptReuse, PromptWork
from lockstep.sched.shares import even_shares
from lockstep.sched.trace import Trace

__all__ = ["Scheduler", "SchedulerLimits"]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Token counts are tokens. `prompt_slice` is rounded up to whole tiles of 64: a prompt is only ever cut on the grid.

    A step runs at most `step_rows` >= `slots` rows of windows; a window has at most `max_drafts` drafts, 0 on a server that never drafts.
    """

    context: int
    slots: int
    pool_pages: int
    prompt_slice: int
    max_queued: int
    step_rows: int = 32
    max_drafts: int = 0
    max_queued_tokens: int = 1 << 20


class Scheduler:
    """Owns slots and pages as numbers. Call `plan`, run it, `update` with what came of it, over and over; `expire` in between."""

    def __init__(self, limits: SchedulerLimits, clock: Callable[[], float], kept: KeptLimits | None = None) -> None:
        self.limits = limits
        self._clock = clock
        self._memory = Memory(limits.slots, limits.pool_pages, kept or KeptLimits())
        self.kept = self._memory.kept
        self._reuse = PromptReuse(self.kept)
        self._order = FairOrder()
        self._queue: list[Live] = []
        self._departures = Departures(limits.slots)
        self._live: dict[str, Live] = {}
        self._paused: list[Live] = []
        self._released: list[str] = []
        self._arrivals = 0
        self._slice_tiles = pages_of(limits.prompt_slice)
        self.draining = False
        self.pauses_total = 0

    @property
    def running(self) -> int:
        """Requests that have entered and not ended, paused ones included."""
        return len(self._live) - len(self._queue)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        return sum(live.prompt.tokens for live in self._queue)

    @property
    def paused(self) -> int:
        """Requests that have entered and own nothing at present."""
        return len(self._paused)

    @property
    def free_pages(self) -> int:
        """Pages nobody owns, or only kept prompt states."""
        return self._memory.free_pages

    @property
    def free_slots(self) -> int:
        return self._memory.slots.free

    def retry_after_s(self, places: int = 1) -> int:
        """Whole seconds, at least 1, until about so many more requests could wait."""
        entered = [live.admitted_s for live in self._memory.owners if live.admitted_s is not None]
        return self._departures.wait_s(places, self._clock() - min(entered, default=self._clock()))

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. Raises EngineRejected with the code the API turns into a status."""
        self._check(request)
        turn = self._order.arrive(request)
        self._arrivals += 1
        live = Live(request, self._clock(), (rank(turn, request), self._arrivals), turn, PromptWork(request, Trace(request)))
        if over := self._too_many(self._held_back(live)):
            self._order.leave(request)
            most, tokens = self.limits.max_queued, self.limits.max_queued_tokens
            raise EngineRejected(
                QUEUE_FULL,
                f"{self.waiting} requests with {self.waiting_tokens} prompt tokens are waiting, this one has {live.prompt.tokens}; this "
                f"server queues {most} requests (--max-queued) with {tokens} tokens (--max-queued-tokens); try again later",
                self.retry_after_s(over),
            )
        self._live[request.id] = live
        insort(self._queue, live, key=lambda one: one.place)

    def cancel(self, request_id: str) -> RoundEvent | None:
        """End a request now; its last event, or None if it is unknown or has ended."""
        live = self._live.get(request_id)
        return self._finish(live, (), FinishReason.CANCELLED) if live else None

    def cancel_all(self) -> list[RoundEvent]:
        return [self._finish(live, (), FinishReason.CANCELLED) for live in list(self._live.values())]

    def expire(self) -> list[RoundEvent]:
        """End the requests whose deadline has passed: a reply that has begun is cut, one that has not never comes."""
        now = self._clock()
        late = [live for live in self._live.values() if live.expires_s <= now]
        return [self._finish(live, (), FinishReason.LENGTH if live.decoding else FinishReason.EXPIRED) for live in late]

    def plan(self) -> StepPlan:
        """The next step: who makes way, grows and enters, which prompt slices and which windows run."""
        releases, self._released = tuple(self._released), []
        pages: dict[str, tuple[int, ...]] = {}
        pauses = self._grow_replies(pages)
        resumes, admissions = self._enter()
        prompts, windows = self._prompt_slices(), self._windows(pages)
        spills, drops = self.kept.take_orders()
        growths = tuple(Growth(name, more) for name, more in pages.items() if more)
        return StepPlan(releases, admissions, prompts, windows, spills, drops, pauses, resumes, growths)

    def update(self, plan: StepPlan, result: StepResult) -> list[RoundEvent]:
        """Take the tokens of a step; one event per request that got tokens or ended. Requests that ended since `plan` are passed over."""
        for piece in plan.prompts:
            live = self._live.get(piece.request_id)
            if live is None or piece.request_id in result.lost:
                continue
            self._reuse.ran(live.prompt, piece)
            if piece.last:
                live.decoding_since_s = self._clock()
        self._reuse.skipped(plan, result)
        # By request: several slices of a step, cut where states are kept, tell theirs together.
        for live in self._alive(result.prompt_logprobs):
            live.prompt_logprobs += result.prompt_logprobs[live.id]
        for live in self._alive(result.lost):
            self._reuse.begin(live.prompt, None)
        events = [self._progress(live, result) for live in self._alive(result.tokens)]
        events += [self._finish(live, (), FinishReason.FAILED, result.failed[live.id]) for live in self._alive(result.failed)]
        return events

    def _check(self, request: EngineRequest) -> None:
        """Raise EngineRejected for what can never be served here."""
        if self.draining:
            raise EngineRejected(DRAINING, "the server is shutting down; try again later")
        if request.id in self._live:
            raise EngineRejected(BAD_REQUEST, f"request id {request.id} is in use; needed: an id of its own")
        prompt, reply = len(request.prompt_ids), request.max_tokens
        if prompt < 1 or reply < 1:
            raise EngineRejected(BAD_REQUEST, f"{prompt} prompt tokens, max_tokens {reply}; needed: 1 or more each")
        if request.priority not in PRIORITIES or request.deadline_s < 0:
            text = (
                f"priority {request.priority}, deadline_s {request.deadline_s}; needed: {PRIORITIES[0]} to {PRIORITIES[-1]}, and 0 or more"
            )
            raise EngineRejected(BAD_REQUEST, text)
        held = min(self.limits.context, self.limits.pool_pages * PAGE_TOKENS)
        if prompt + reply > held:
            text = f"prompt {prompt} + max_tokens {reply} needs {prompt + reply} tokens; this server holds {held} a request (--context)"
            raise EngineRejected(CONTEXT_EXCEEDED, text)

    def _held_back(self, arriving: Live) -> list[Live]:
        """Who would still wait after the next plan, were `arriving` queued now."""
        memory = self._memory
        slots, pages = memory.slots.free, memory.free_pages - memory.spare_pages
        entering = sorted([*self._paused, *self._queue, arriving], key=lambda live: live.place)
        for at, live in enumerate(entering):
            slots, pages = slots - 1, pages - live.needed_pages() - memory.headroom(live)
            if slots < 0 or pages < 0:
                return [live for live in entering[at:] if live.admitted_s is None]
        return []

    def _too_many(self, held_back: list[Live]) -> int:
        """How many of `held_back`, in order, must go before the others may wait; 0 if all may."""
        tokens, gone = sum(live.prompt.tokens for live in held_back), 0
        while len(held_back) - gone > self.limits.max_queued or tokens > self.limits.max_queued_tokens:
            tokens -= held_back[gone].prompt.tokens
            gone += 1
        return gone

    def _grow_replies(self, pages: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
        """A page for the next row of every reply that needs one; whoever comes last is paused until there are enough. Returns who was.

        The first in order always gets its page, and every request fits the pool alone, so something goes on whatever happens.
        """
        pauses: list[str] = []
        for live in [owner for owner in self._memory.owners if owner.decoding]:
            while live.slot is not None:
                more = self._memory.grow(live)
                if more is not None:
                    pages[live.id] = more
                    break
                last = self._memory.owners[-1]
                self._memory.leave(last)
                self._paused.append(last)
                pauses.append(last.id)
        self.pauses_total += len(pauses)
        return tuple(pauses)

    def _enter(self) -> tuple[tuple[Resume, ...], tuple[Admission, ...]]:
        """Who goes on and who begins, in order, but for those who had better wait for the prefix that another prompt is about to leave."""
        resumes: list[Resume] = []
        admissions: list[Admission] = []
        if not self.free_slots:
            return (), ()
        for live in sorted([*self._paused, *self._queue], key=lambda live: live.place):
            if not self._memory.has_lane(live):
                continue
            if live.admitted_s is not None:
                if not self._memory.has_room(live):
                    break
                resumes.append(self._resume(live))
                continue
            if self._reuse.must_wait(live.prompt, (owner.prompt for owner in self._memory.owners if not owner.decoding)):
                continue
            admission = self._admit(live)
            if admission is None:
                break
            admissions.append(admission)
        return tuple(resumes), tuple(admissions)

    def _resume(self, live: Live) -> Resume:
        self._paused.remove(live)
        self._memory.enter(live)
        assert live.slot is not None
        return Resume(live.id, live.slot, tuple(live.pages))

    def _admit(self, live: Live) -> Admission | None:
        """Let a request in, from a kept state if there is one and room beside it; None if there is no room at all."""
        source = self._reuse.source(live.prompt)
        if not self._memory.has_room(live, source):
            source = None
        if not self._memory.has_room(live, source):
            return None
        restore = self._reuse.begin(live.prompt, source)
        self._memory.enter(live, self.kept.shared_pages(source) if source else ())
        self._queue.remove(live)
        self._order.begin(live.turn)
        live.admitted_s = self._clock()
        if source and restore and restore.source < 0:
            restore = replace(restore, stays=self.kept.bring_back(source, tuple(live.pages[: pages_of(restore.tokens)])))
        assert live.slot is not None
        return Admission(live.request, live.slot, tuple(live.pages), restore)

    def _prompt_slices(self) -> tuple[PromptSlice, ...]:
        """One budget of tiles, shared evenly: a long prompt holds up neither the replies nor the short prompts beside it.

        Are there more prompts than tiles, those first in order get one each.
        """
        reading = [live for live in self._memory.owners if not live.decoding][: self._slice_tiles]
        wants = [max(1, pages_of(live.prompt.tokens - live.prompt.done)) for live in reading]
        slices: list[PromptSlice] = []
        for live, tiles in zip(reading, even_shares(wants, self._slice_tiles), strict=True):
            slices += self._reuse.slices(live.prompt, tiles * PAGE_TOKENS, tuple(live.pages))
        return tuple(slices)

    def _windows(self, pages: dict[str, tuple[int, ...]]) -> tuple[StepWindow, ...]:
        """One row per decoding request, the rows left shared evenly; drafts never make anyone wait, so no page means no drafts."""
        decoding = [live for live in self._memory.owners if live.decoding]
        shares = even_shares([self._room(live) for live in decoding], self.limits.step_rows - len(decoding))
        windows: list[StepWindow] = []
        for live, drafts in zip(decoding, shares, strict=True):
            more = self._memory.grow(live, drafts)
            if more is None:
                drafts = min(drafts, self._memory.drafts_held(live))
            elif more:
                pages[live.id] = pages.get(live.id, ()) + more
            windows.append(StepWindow(live.id, drafts))
        return tuple(windows)

    def _room(self, live: Live) -> int:
        """Drafts a request can use: with all of them right, the row behind the last still chooses a token it may give out."""
        return min(self.limits.max_drafts, live.request.max_tokens - live.generated - 1) if live.request.draft else 0

    def _alive(self, names: Iterable[str]) -> list[Live]:
        return [self._live[name] for name in names if name in self._live]

    def _progress(self, live: Live, result: StepResult) -> RoundEvent:
        taken, finish = live.progress(result.tokens[live.id], result.drafted.get(live.id, 0))
        event = self._finish(live, taken, finish) if finish else RoundEvent(live.id, taken)
        return live.told(event, result.logprobs.get(live.id, ()))

    def _finish(self, live: Live, tokens: tuple[int, ...], reason: FinishReason, error: str | None = None) -> RoundEvent:
        now = self._clock()
        del self._live[live.id]
        if live.admitted_s is None:
            self._queue.remove(live)
            self._order.leave(live.request)
        else:
            self._released.append(live.id)
            self._departures.ended(now - live.admitted_s)
            if live.slot is None:
                self._paused.remove(live)
            else:
                self._memory.leave(live)
        return live.end(now, tokens, reason, error)
