"""Runs a StepPlan: prompt slices, drafts, one forward pass over all windows, one sampled token per row, commit.

Knows which sequence a request is; knows nothing of queues, text or who drafts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.core.plan import Admission, PromptSlice, StepPlan, StepResult, StepWindow
from lockstep.draft.stream import Ask, Drafter, Kept, Stream
from lockstep.model.glm import GlmModel
from lockstep.run.memory import SavedStream, StreamMemory
from lockstep.run.sampler import RowRequest, SamplingError, choose


@dataclass(slots=True)
class _Step:
    """What one step has come to so far."""

    result: StepResult = field(default_factory=StepResult)
    kept: list[Kept] = field(default_factory=list)


class Runner:
    """Owns the sequences of one model. `vocabulary` ids below it may be chosen; the rows above are padding.

    `drafter` guesses for requests that want drafts. Without one each window is its pending token.
    """

    def __init__(self, model: GlmModel, pool: TokenPool, slots: StateSlots, vocabulary: int, drafter: Drafter | None = None) -> None:
        self._model, self._slots, self._vocabulary = model, slots, vocabulary
        self._drafter = drafter or Drafter()
        self._live: dict[str, Stream] = {}
        self._memory = StreamMemory(pool, slots, self._drafter)
        self._paused: dict[str, SavedStream] = {}
        model.attach(pool, slots)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. A row that cannot be sampled fails its own request only."""
        for name in plan.releases:
            stream = self._live.pop(name)
            self._paused.pop(name, None)
            if stream.request.draft:
                self._drafter.release(stream)
        for admission in plan.admissions:
            self._admit(admission)
        step = _Step()
        for piece in plan.prompts:
            self._run_prompt(piece, step)
        if plan.windows:
            self._run_windows(plan.windows, step)
        if step.kept:
            self._drafter.absorb(step.kept)
        return step.result

    def state_hash(self, request_id: str) -> str:
        """SHA-256 of the committed state of a request that has not been released yet."""
        return self._model.state_hash(self._live[request_id].sequence)

    def pause(self, request_id: str) -> None:
        """Take a live stream's whole memory out to the host; its slot and pages may go to others at once."""
        self._paused[request_id] = self._memory.save(self._live[request_id])

    def resume(self, request_id: str, slot: int, pages: tuple[int, ...]) -> None:
        """Put a paused stream into `slot` and `pages`, which cover its committed tokens. It goes on bit for bit as if never paused."""
        stream = self._live[request_id]
        stream.sequence.slot, stream.sequence.pages[:] = slot, pages
        self._memory.restore(stream, self._paused.pop(request_id))

    def _admit(self, admission: Admission) -> None:
        self._slots.reset(admission.slot)
        stream = self._live[admission.request.id] = Stream(admission.request, Sequence(admission.slot, list(admission.pages)))
        if stream.request.draft:
            self._drafter.admit(stream)

    def _run_prompt(self, piece: PromptSlice, step: _Step) -> None:
        stream, end = self._live[piece.request_id], piece.start + piece.count
        prompt, taps = stream.request.prompt_ids, self._drafter.taps if stream.request.draft else ()
        output = self._model.run_prompt(stream.sequence, prompt[piece.start : end], taps)
        following = prompt[piece.start + 1 : end + 1]
        if piece.last:
            following += self._take(stream, self._logits(output.hidden), (), step.result)
        if stream.request.draft and len(following) == piece.count:
            step.kept.append(Kept(stream, piece.start, following, output.taps))

    def _run_windows(self, windows: tuple[StepWindow, ...], step: _Step) -> None:
        streams = [self._live[window.request_id] for window in windows]
        drafts = self._propose(streams, windows)
        rows = [(stream.sequence, (stream.pending, *guesses)) for stream, guesses in zip(streams, drafts, strict=True)]
        began = time.perf_counter()
        output = self._model.run_step(rows, self._drafter.taps)
        logits = self._logits(output.hidden)
        self._drafter.timed(len(logits), time.perf_counter() - began)
        keep, at = [], 0
        for stream, guesses in zip(streams, drafts, strict=True):
            chosen = self._take(stream, logits[at : at + 1 + len(guesses)], guesses, step.result)
            if guesses:
                step.result.drafted[stream.request.id] = len(guesses)
            if stream.request.draft and chosen:
                step.kept.append(Kept(stream, stream.sequence.length, chosen, output.taps[:, at : at + len(chosen)]))
            keep.append(max(1, len(chosen)))
            at += 1 + len(guesses)
        self._model.commit(rows, keep)

    def _propose(self, streams: list[Stream], windows: tuple[StepWindow, ...]) -> list[tuple[int, ...]]:
        """Drafts of each window, at most as many as the plan allows."""
        places = [at for at, window in enumerate(windows) if window.max_drafts]
        drafts: list[tuple[int, ...]] = [()] * len(windows)
        if places:
            asks = [Ask(streams[at], windows[at].max_drafts) for at in places]
            for at, proposal in zip(places, self._drafter.propose(asks), strict=True):
                drafts[at] = proposal.tokens[: windows[at].max_drafts]
        return drafts

    def _logits(self, hidden: Tensor) -> NDArray[np.float32]:
        return self._model.head(hidden)[:, : self._vocabulary].float().cpu().numpy()

    def _take(self, stream: Stream, logits: NDArray[np.float32], drafts: tuple[int, ...], result: StepResult) -> tuple[int, ...]:
        """Choose row after row while the draft that fed the next row is the token chosen; nothing if a row could not be sampled."""
        chosen: list[int] = []
        try:
            for row, values in enumerate(logits):
                chosen.append(choose(values, self._row_request(stream, len(chosen))))
                if row < len(drafts) and (drafts[row] != chosen[-1] or chosen[-1] in stream.request.stop_ids):
                    break
        except SamplingError as error:
            result.failed[stream.request.id] = str(error)
            return ()
        stream.pending = chosen[-1]
        stream.generated += len(chosen)
        result.tokens[stream.request.id] = tuple(chosen)
        return tuple(chosen)

    def _row_request(self, stream: Stream, ahead: int) -> RowRequest:
        request, index = stream.request, stream.generated + ahead
        hold = index < request.min_tokens and not request.ignore_eos
        return RowRequest(request.sampling, len(request.prompt_ids) + index, request.stop_ids if hold else frozenset())
