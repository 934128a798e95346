"""Runs a StepPlan: prompt slices, drafts, one forward pass over all windows, one sampled token per row, commit.

Knows which sequence a request is; knows nothing of queues, text or who drafts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grammars.protocol import Backend
from lockstep.cache import PAGE_TOKENS, Sequence, StateSlots, TokenPool
from lockstep.cache.spill import SpillFolder
from lockstep.core.grid import TILE, last_tile
from lockstep.core.plan import Admission, PromptSlice, StepPlan, StepResult, StepWindow
from lockstep.core.types import EngineRequest, TokenLogprob
from lockstep.draft.stream import Ask, Drafter, Kept, Stream
from lockstep.model.glm import GlmModel
from lockstep.model.vision import VisionTower
from lockstep.run.constraint import Constraint
from lockstep.run.draws import Draws, PlainDraws, RowDraws
from lockstep.run.kept import KeptSizes, KeptStates, LastTile
from lockstep.run.memory import SavedStream, StreamMemory
from lockstep.run.pictures import PictureRows
from lockstep.run.sampler import History, RowRequest, SamplingError, logprob


@dataclass(slots=True)
class _Step:
    """What one step has come to so far; `kept` are rows the drafter has not seen."""

    result: StepResult = field(default_factory=StepResult)
    kept: list[Kept] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class Runner:
    """Owns the sequences of one model. `vocabulary` ids below it may be chosen; the rows above are padding.

    `drafter` guesses for requests that want drafts. Without one each window is its pending token. `spill` takes kept prompt states that a
    plan sends to disk.
    """

    def __init__(
        self,
        model: GlmModel,
        pool: TokenPool,
        slots: StateSlots,
        vocabulary: int,
        drafter: Drafter | None = None,
        spill: SpillFolder | None = None,
        tower: VisionTower | None = None,
        grammars: Callable[[], Backend] | None = None,
    ) -> None:
        self._model, self._slots, self._vocabulary = model, slots, vocabulary
        self._drafter = drafter or Drafter()
        self._live: dict[str, Stream] = {}
        self._histories: dict[str, History] = {}
        self._constraints: dict[str, Constraint] = {}
        self._grammars = grammars
        self._memory = StreamMemory(pool, slots, self._drafter)
        self._paused: dict[str, SavedStream] = {}
        self._kept = KeptStates(self._memory, model.exchange, spill)
        self._pictures = PictureRows(tower, model)
        self._whole_prompts: dict[str, LastTile] = {}
        self._draws = Draws(vocabulary, slots.slots, model.device) if torch.device(model.device).type == "cuda" else None
        model.attach(pool, slots)

    @property
    def kept_sizes(self) -> KeptSizes:
        """What keeping costs on this rank."""
        model = self._model
        taps = PAGE_TOKENS * len(self._drafter.taps) * model.config.hidden_size * model.dtype.itemsize
        return KeptSizes(self._memory.state_bytes + taps, self._vocabulary * torch.float32.itemsize, self._memory.page_bytes)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. A row that cannot be sampled fails its own request only."""
        for name in plan.releases:
            stream = self._live.pop(name)
            self._paused.pop(name, None)
            self._whole_prompts.pop(name, None)
            history = self._histories.pop(name, None)
            if history and self._draws:
                self._draws.forget(history)
            self._constraints.pop(name, None)
            if stream.request.draft:
                self._drafter.release(stream)
        self._kept.spill(plan.spills)
        self._kept.drop(plan.drops)
        for name in plan.pauses:
            self.pause(name)
        for one in plan.resumes:
            self.resume(one.request_id, one.slot, one.pages)
        step = _Step()
        for admission in plan.admissions:
            self._admit(admission, step)
        for growth in plan.growths:
            self._live[growth.request_id].sequence.pages += growth.pages
        for piece in plan.prompts:
            if piece.request_id not in step.lost:
                self._run_prompt(piece, step)
        if plan.windows:
            self._run_windows(plan.windows, step)
        self._absorb(step)
        return replace(step.result, lost=tuple(step.lost))

    def state_hash(self, request_id: str) -> str:
        """SHA-256 of the committed state of a request that has not been released yet, also of one that is paused."""
        paused = self._paused.get(request_id)
        return paused.state_hash() if paused else self._model.state_hash(self._live[request_id].sequence)

    def pause(self, request_id: str) -> None:
        """Take a live stream's whole memory out to the host; its slot and pages may go to others at once."""
        self._paused[request_id] = self._memory.save(self._live[request_id])

    def resume(self, request_id: str, slot: int, pages: tuple[int, ...]) -> None:
        """Put a paused stream into `slot` and `pages`, which cover its committed tokens. It goes on bit for bit as if never paused."""
        stream = self._live[request_id]
        stream.sequence.slot, stream.sequence.pages[:] = slot, pages
        self._memory.restore(stream, self._paused.pop(request_id))

    def _admit(self, admission: Admission, step: _Step) -> None:
        restore, request = admission.restore, admission.request
        self._slots.reset(admission.slot)
        stream = self._live[request.id] = Stream(request, Sequence(admission.slot, list(admission.pages)))
        if request.sampling.has_penalties or request.close_after:
            self._histories[request.id] = History(request.prompt_ids, self._vocabulary)
        if request.grammar and self._grammars:
            self._constraints[request.id] = Constraint(request, self._grammars())
        if request.draft:
            self._drafter.admit(stream, last_tile(restore.tokens) + 1 if restore else 1)
        if restore is None:
            return
        tile = self._kept.begin(stream, restore)
        if tile is None:
            step.lost.append(request.id)
            if request.draft:
                self._drafter.admit(stream)
        elif restore.tokens == len(request.prompt_ids):
            self._whole_prompts[request.id] = tile
        else:
            self._tell_prompt(stream, last_tile(restore.tokens), restore.tokens, tile.taps, step)

    def _run_prompt(self, piece: PromptSlice, step: _Step) -> None:
        """Run a slice, keep the state behind it if the plan says so, choose the first reply token behind the last one."""
        stream, start, end = self._live[piece.request_id], piece.start, piece.start + piece.count
        if piece.count:
            pictures = self._pictures.within(stream.request, start, end)
            every = stream.request.prompt_logprobs >= 0
            output = self._model.run_prompt(stream.sequence, stream.request.prompt_ids[start:end], self._taps(stream), pictures, every)
            if every:
                step.result.prompt_logprobs[stream.request.id] = self._told_of_prompt(stream.request, start, output.hidden, step)
            taps, logits = output.taps, torch.from_numpy(self._logits(output.hidden[-1:])[0]) if piece.last else None
        else:
            whole = self._whole_prompts.pop(piece.request_id)
            start, taps, logits = last_tile(end), whole.taps, whole.logits
        tile = last_tile(end)
        if piece.keep:
            if tile > start:
                self._tell_prompt(stream, start, tile, taps[:, : tile - start], step)
            self._absorb(step)
            start, taps = tile, taps[:, tile - start :]
            self._kept.keep(piece.keep, stream, taps, logits)
        if logits is None or self._take(stream, PlainDraws(logits.unsqueeze(0).numpy()), 0, (), step.result):
            self._tell_prompt(stream, start, end, taps, step)

    def _taps(self, stream: Stream) -> tuple[int, ...]:
        return self._drafter.taps if stream.request.draft else ()

    def _tell_prompt(self, stream: Stream, start: int, end: int, taps: Tensor, step: _Step) -> None:
        """Let the drafter know of prompt rows `start .. end - 1`; behind the prompt's last one stands the pending token."""
        if not stream.request.draft:
            return
        if any(rows.stream is stream for rows in step.kept):
            self._absorb(step)
        prompt = stream.request.prompt_ids
        following = prompt[start + 1 : end + 1] + ((stream.pending,) if end == len(prompt) else ())
        step.kept.append(Kept(stream, start, following, taps))

    def _absorb(self, step: _Step) -> None:
        if step.kept:
            self._drafter.absorb(step.kept)
            step.kept = []

    def _run_windows(self, windows: tuple[StepWindow, ...], step: _Step) -> None:
        streams = [self._live[window.request_id] for window in windows]
        drafts = self._propose(streams, windows)
        rows = [(stream.sequence, (stream.pending, *guesses)) for stream, guesses in zip(streams, drafts, strict=True)]
        began = time.perf_counter()
        output = self._model.run_step(rows, self._drafter.taps)
        draws = self._drawn(streams, drafts, self._model.logits(output))
        self._drafter.timed(len(output.hidden), time.perf_counter() - began)
        keep, at = [], 0
        for stream, guesses in zip(streams, drafts, strict=True):
            chosen = self._take(stream, draws, at, guesses, step.result)
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
                most, constraint = windows[at].max_drafts, self._constraints.get(streams[at].request.id)
                drafts[at] = constraint.drafts(proposal.tokens, most) if constraint else proposal.tokens[:most]
        return drafts

    def _drawn(self, streams: list[Stream], drafts: list[tuple[int, ...]], logits: Tensor) -> RowDraws:
        """The draws of all rows: on a GPU at once, as if every draft were right, else one by one when they are asked for."""
        if not self._draws:
            return PlainDraws(self._usable(logits))
        rows = []
        for stream, guesses in zip(streams, drafts, strict=True):
            constraint = self._constraints.get(stream.request.id)
            masks = constraint.ahead(guesses) if constraint else [(None, frozenset[int]())] * (1 + len(guesses))
            rows += [
                replace(self._row_request(stream, at, *mask), ahead=guesses[:at], told=stream.request.logprobs)
                for at, mask in enumerate(masks)
            ]
        return self._draws.draw(rows, logits)

    def _logits(self, hidden: Tensor) -> NDArray[np.float32]:
        return self._usable(self._model.head(hidden))

    def _usable(self, logits: Tensor) -> NDArray[np.float32]:
        return logits[:, : self._vocabulary].float().cpu().numpy()

    def _told_of_prompt(self, request: EngineRequest, start: int, hidden: Tensor, step: _Step) -> tuple[TokenLogprob, ...]:
        """Behind what other slices of this step told, the tokens that follow rows `start` and on; a tile of logits at a time."""
        told = list(step.result.prompt_logprobs.get(request.id, ()))
        following = request.prompt_ids[start + 1 : start + 1 + len(hidden)]
        for at in range(0, len(following), TILE):
            rows = self._logits(hidden[at : at + TILE])
            told += [logprob(values, token, request.prompt_logprobs) for values, token in zip(rows, following[at:], strict=False)]
        return tuple(told)

    def _take(self, stream: Stream, draws: RowDraws, first: int, drafts: tuple[int, ...], result: StepResult) -> tuple[int, ...]:
        """Choose from row `first` on while the draft that fed the next row is the token chosen; nothing if a row has none."""
        chosen: list[int] = []
        told: list[TokenLogprob] = []
        try:
            for row in range(1 + len(drafts)):
                chosen.append(self._choose(stream, draws, first + row, row))
                if stream.request.logprobs >= 0:
                    told.append(draws.likelihood(first + row, chosen[-1], stream.request.logprobs))
                if row < len(drafts) and (drafts[row] != chosen[-1] or chosen[-1] in stream.request.stop_ids):
                    break
        except SamplingError as error:
            result.failed[stream.request.id] = str(error)
            return ()
        stream.pending = chosen[-1]
        stream.generated += len(chosen)
        result.tokens[stream.request.id] = tuple(chosen)
        if told:
            result.logprobs[stream.request.id] = tuple(told)
        return tuple(chosen)

    def _choose(self, stream: Stream, draws: RowDraws, row: int, ahead: int) -> int:
        """The token behind `ahead` others of this step: the one that is due by now, or else a draw."""
        request, history = stream.request, self._histories.get(stream.request.id)
        token = -1
        if request.close_after and history and not history.counts[request.close_after[1]]:
            due, closing = request.close_after
            if stream.generated + ahead >= due:
                token = closing
        if token < 0:
            token = draws.token(row, lambda: self._row_request(stream, ahead, *self._mask(stream)))
        if history:
            history.add(token)
        if constraint := self._constraints.get(request.id):
            constraint.take(token)
        return token

    def _mask(self, stream: Stream) -> tuple[NDArray[np.bool_] | None, frozenset[int]]:
        """What the grammar allows in the next row, and what it holds back."""
        constraint = self._constraints.get(stream.request.id)
        return (constraint.allowed(), constraint.held_back) if constraint else (None, frozenset())

    def _row_request(self, stream: Stream, ahead: int, allowed: NDArray[np.bool_] | None, held_back: frozenset[int]) -> RowRequest:
        request, index = stream.request, stream.generated + ahead
        hold = index < request.min_tokens and not request.ignore_eos
        banned = held_back | (request.stop_ids if hold else frozenset[int]())
        return RowRequest(request.sampling, len(request.prompt_ids) + index, banned, self._histories.get(request.id), allowed)
