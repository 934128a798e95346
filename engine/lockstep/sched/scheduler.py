"""Admission, prompt slices and decode windows, first come first served.

A request reserves the pages of its prompt and its longest reply when it is admitted, so nothing can fail for want of memory in mid-reply
and nothing is ever paused. The price is that a short reply to a large `max_tokens` holds pages it never uses. Knows no tensor; the clock
is handed in.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.core.errors import BAD_REQUEST, CONTEXT_EXCEEDED, DRAINING, QUEUE_FULL, EngineRejected
from lockstep.core.plan import Admission, PromptSlice, StepPlan, StepResult, StepWindow
from lockstep.core.types import EngineRequest, FinishReason, RoundEvent, Usage
from lockstep.sched.kept import KeptLimits, KeptPrompts, KeptState
from lockstep.sched.ledger import Ledger
from lockstep.sched.reuse import PromptReuse, PromptWork

PAGE_TOKENS = 64


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


@dataclass(slots=True)
class _Live:
    """A request between submit and finish. Reply tokens are counted, not kept."""

    request: EngineRequest
    arrived_s: float
    prompt: PromptWork
    admission: Admission | None = None
    admitted_s: float = 0.0
    decoding_since_s: float = 0.0
    generated: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def decoding(self) -> bool:
        return self.generated > 0


class Scheduler:
    """Owns slots and pages as numbers. Call `plan`, run it, `update` with what came of it, over and over."""

    def __init__(self, limits: SchedulerLimits, clock: Callable[[], float], kept: KeptLimits | None = None) -> None:
        self.limits = limits
        self._clock = clock
        self._slots, self._pages = Ledger(limits.slots), Ledger(limits.pool_pages)
        self.kept = KeptPrompts(kept or KeptLimits(), self._pages)
        self._reuse = PromptReuse(self.kept)
        self._queue: deque[_Live] = deque()
        self._running: OrderedDict[str, _Live] = OrderedDict()
        self._released: list[str] = []
        self._slice_rows = -(-limits.prompt_slice // PAGE_TOKENS) * PAGE_TOKENS
        self.draining = False

    @property
    def running(self) -> int:
        """Requests that own a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def free_pages(self) -> int:
        """Pages nobody owns, or only kept prompt states."""
        return self._pages.free + self.kept.idle_pages

    @property
    def free_slots(self) -> int:
        """Slots nobody owns."""
        return self._slots.free

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. Raises EngineRejected with the code the API turns into a status."""
        if self.draining:
            raise EngineRejected(DRAINING, "the server is shutting down; try again later")
        if request.id in self._running or any(live.request.id == request.id for live in self._queue):
            raise EngineRejected(BAD_REQUEST, f"request id {request.id} is in use; needed: an id of its own")
        prompt, reply = len(request.prompt_ids), request.max_tokens
        if prompt < 1 or reply < 1:
            raise EngineRejected(BAD_REQUEST, f"{prompt} prompt tokens, max_tokens {reply}; needed: 1 or more each")
        held = min(self.limits.context, self._pages.count * PAGE_TOKENS)
        if prompt + reply > held:
            text = f"prompt {prompt} + max_tokens {reply} needs {prompt + reply} tokens; this server holds {held} a request (--context)"
            raise EngineRejected(CONTEXT_EXCEEDED, text)
        if self._held_back(request) > self.limits.max_queued:
            text = f"{self.waiting} requests are waiting and this server queues {self.limits.max_queued} (--max-queued); try again later"
            raise EngineRejected(QUEUE_FULL, text)
        self._queue.append(_Live(request, self._clock(), PromptWork.of(request)))

    def cancel(self, request_id: str) -> RoundEvent | None:
        """End a request now; its last event, or None if it is unknown or has ended."""
        live = self._running.get(request_id) or next((live for live in self._queue if live.request.id == request_id), None)
        return self._finish(live, (), FinishReason.CANCELLED) if live else None

    def cancel_all(self) -> list[RoundEvent]:
        """End every request now."""
        live = [*self._running.values(), *self._queue]
        return [self._finish(one, (), FinishReason.CANCELLED) for one in live]

    def plan(self) -> StepPlan:
        """The next step: who enters, which prompt slices and which windows run."""
        releases, self._released = tuple(self._released), []
        admissions = self._admissions()
        prompts, windows = self._prompt_slices(), self._windows()
        spills, drops = self.kept.take_orders()
        return StepPlan(releases, admissions, prompts, windows, spills, drops)

    def update(self, plan: StepPlan, result: StepResult) -> list[RoundEvent]:
        """Take the tokens of a step; returns one event per request that got tokens or ended."""
        for piece in plan.prompts:
            live = self._running[piece.request_id]
            if piece.request_id in result.lost:
                continue
            self._reuse.ran(live.prompt, piece)
            if piece.last:
                live.decoding_since_s = self._clock()
        for name in result.lost:
            self._reuse.lose(self._running[name].prompt, [piece for piece in plan.prompts if piece.request_id == name])
        events = [self._progress(self._running[name], tokens, result.drafted.get(name, 0)) for name, tokens in result.tokens.items()]
        events += [self._finish(self._running[name], (), FinishReason.FAILED, error=cause) for name, cause in result.failed.items()]
        return events

    def _held_back(self, arriving: EngineRequest) -> int:
        """How many would still wait after the next plan, were `arriving` queued now."""
        slots, pages, order = self._slots.free, self.free_pages, [*(live.request for live in self._queue), arriving]
        for at, request in enumerate(order):
            slots, pages = slots - 1, pages - _reserve(request)
            if slots < 0 or pages < 0:
                return len(order) - at
        return 0

    def _admissions(self) -> tuple[Admission, ...]:
        """First come first served, but for those who had better wait for the prefix that another prompt is about to leave."""
        admissions: list[Admission] = []
        for live in list(self._queue):
            under_way = (other.prompt for other in self._running.values() if not other.decoding)
            if self._slots.free and self._reuse.must_wait(live.prompt, under_way):
                continue
            source = self._reuse.source(live.prompt)
            if not self._can_admit(live.request, source):
                source = None
            if not self._can_admit(live.request, source):
                break
            self._queue.remove(live)
            admissions.append(self._admit(live, source))
        return tuple(admissions)

    def _can_admit(self, request: EngineRequest, source: KeptState | None) -> bool:
        shared = len(self.kept.shared_pages(source)) if source else 0
        return self._slots.free > 0 and self.kept.has_room(_reserve(request) - shared, source)

    def _admit(self, live: _Live, source: KeptState | None) -> Admission:
        restore = self._reuse.begin(live.prompt, source)
        shared = self.kept.shared_pages(source) if source else ()
        self._pages.share(shared)
        self.kept.make_room(_reserve(live.request) - len(shared))
        pages = shared + self._pages.take(_reserve(live.request) - len(shared))
        live.admission = Admission(live.request, self._slots.take(1)[0], pages, restore)
        live.admitted_s = self._clock()
        self._running[live.request.id] = live
        return live.admission

    def _prompt_slices(self) -> tuple[PromptSlice, ...]:
        """Oldest first within one budget of rows, so a long prompt never holds up the replies for more than one slice."""
        slices: list[PromptSlice] = []
        budget = self._slice_rows
        for live in self._running.values():
            if live.decoding or live.admission is None or budget <= 0:
                continue
            pieces = self._reuse.slices(live.prompt, budget, live.admission.pages)
            slices += pieces
            budget -= sum(-(-piece.count // PAGE_TOKENS) * PAGE_TOKENS for piece in pieces)
        return tuple(slices)

    def _windows(self) -> tuple[StepWindow, ...]:
        """One row per decoding request; the rows left are shared evenly, and what one cannot use goes to the others."""
        decoding = [live for live in self._running.values() if live.decoding]
        budget, left = self.limits.step_rows - len(decoding), len(decoding)
        drafts: dict[str, int] = {}
        for live in sorted(decoding, key=self._room):
            drafts[live.request.id] = min(self._room(live), budget // left)
            budget, left = budget - drafts[live.request.id], left - 1
        return tuple(StepWindow(live.request.id, drafts[live.request.id]) for live in decoding)

    def _room(self, live: _Live) -> int:
        """Drafts a request can use: with all of them right, the row behind the last still chooses a token it may give out."""
        return min(self.limits.max_drafts, live.request.max_tokens - live.generated - 1) if live.request.draft else 0

    def _progress(self, live: _Live, tokens: tuple[int, ...], drafted: int) -> RoundEvent:
        """Count tokens up to the one that ends the request, if one does."""
        request, taken, finish = live.request, [], None
        for token in tokens:
            taken.append(token)
            live.generated += 1
            if token in request.stop_ids and not request.ignore_eos and live.generated > request.min_tokens:
                finish = FinishReason.STOP
            elif live.generated >= request.max_tokens:
                finish = FinishReason.LENGTH
            if finish:
                break
        live.rounds += 1
        live.drafted += drafted
        live.accepted += max(0, len(tokens) - 1)
        return self._finish(live, tuple(taken), finish) if finish else RoundEvent(request.id, tuple(taken))

    def _finish(self, live: _Live, tokens: tuple[int, ...], reason: FinishReason, error: str | None = None) -> RoundEvent:
        name = live.request.id
        if live.admission is None:
            self._queue.remove(live)
        else:
            del self._running[name]
            self._slots.give_back((live.admission.slot,))
            self._pages.give_back(live.admission.pages)
            self._released.append(name)
        return RoundEvent(name, tokens, reason, self._usage(live), error=error)

    def _usage(self, live: _Live) -> Usage:
        now = self._clock()
        admitted = live.admitted_s if live.admission else now
        decoding = live.decoding_since_s or now
        return Usage(
            prompt_tokens=live.prompt.tokens,
            cached_tokens=live.prompt.cached,
            completion_tokens=live.generated,
            rounds=live.rounds,
            drafted_tokens=live.drafted,
            accepted_tokens=live.accepted,
            queued_s=admitted - live.arrived_s,
            prefill_s=max(0.0, decoding - admitted),
            decode_s=now - decoding,
        )


def _reserve(request: EngineRequest) -> int:
    """Pages of the prompt and the longest reply."""
    return -(-(len(request.prompt_ids) + request.max_tokens) // PAGE_TOKENS)
