"""Runs a StepPlan: prompt slices, then one forward pass over all windows, one sampled token per row, commit.

Knows which sequence a request is; knows nothing of queues, text or time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.core.plan import PromptSlice, StepPlan, StepResult, StepWindow
from lockstep.core.types import EngineRequest
from lockstep.model.glm import GlmModel
from lockstep.run.sampler import RowRequest, SamplingError, choose


@dataclass(slots=True)
class _Live:
    """A request on the device. `pending` is its newest token, chosen but not yet run; `generated` counts chosen tokens."""

    request: EngineRequest
    sequence: Sequence
    pending: int = -1
    generated: int = 0


class Runner:
    """Owns the sequences of one model. `vocabulary` ids below it may be chosen; the rows above are padding."""

    def __init__(self, model: GlmModel, pool: TokenPool, slots: StateSlots, vocabulary: int) -> None:
        self._model, self._slots, self._vocabulary = model, slots, vocabulary
        self._live: dict[str, _Live] = {}
        model.attach(pool, slots)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. A row that cannot be sampled fails its own request only."""
        for name in plan.releases:
            del self._live[name]
        for admission in plan.admissions:
            self._slots.reset(admission.slot)
            self._live[admission.request.id] = _Live(admission.request, Sequence(admission.slot, list(admission.pages)))
        tokens: dict[str, tuple[int, ...]] = {}
        failed: dict[str, str] = {}
        for piece in plan.prompts:
            self._run_prompt(piece, tokens, failed)
        if plan.windows:
            self._run_windows(plan.windows, tokens, failed)
        return StepResult(tokens, failed)

    def state_hash(self, request_id: str) -> str:
        """SHA-256 of the committed state of a request that has not been released yet."""
        return self._model.state_hash(self._live[request_id].sequence)

    def _run_prompt(self, piece: PromptSlice, tokens: dict[str, tuple[int, ...]], failed: dict[str, str]) -> None:
        live = self._live[piece.request_id]
        output = self._model.run_prompt(live.sequence, live.request.prompt_ids[piece.start : piece.start + piece.count])
        if piece.last:
            self._take(live, self._logits(output.hidden), (), tokens, failed)

    def _run_windows(self, windows: tuple[StepWindow, ...], tokens: dict[str, tuple[int, ...]], failed: dict[str, str]) -> None:
        lives = [self._live[window.request_id] for window in windows]
        rows = [(live.sequence, (live.pending, *window.drafts)) for live, window in zip(lives, windows, strict=True)]
        logits = self._logits(self._model.run_step(rows).hidden)
        keep, at = [], 0
        for live, window in zip(lives, windows, strict=True):
            count = 1 + len(window.drafts)
            self._take(live, logits[at : at + count], window.drafts, tokens, failed)
            keep.append(max(1, len(tokens.get(live.request.id, ()))))
            at += count
        self._model.commit(rows, keep)

    def _logits(self, hidden: Tensor) -> NDArray[np.float32]:
        return self._model.head(hidden)[:, : self._vocabulary].float().cpu().numpy()

    def _take(
        self,
        live: _Live,
        logits: NDArray[np.float32],
        drafts: tuple[int, ...],
        tokens: dict[str, tuple[int, ...]],
        failed: dict[str, str],
    ) -> None:
        """Choose row after row while the draft that fed the next row is the token chosen."""
        chosen: list[int] = []
        try:
            for row, values in enumerate(logits):
                chosen.append(choose(values, self._row_request(live, len(chosen))))
                if row < len(drafts) and (drafts[row] != chosen[-1] or chosen[-1] in live.request.stop_ids):
                    break
        except SamplingError as error:
            failed[live.request.id] = str(error)
            return
        live.pending = chosen[-1]
        live.generated += len(chosen)
        tokens[live.request.id] = tuple(chosen)

    def _row_request(self, live: _Live, ahead: int) -> RowRequest:
        request, index = live.request, live.generated + ahead
        hold = index < request.min_tokens and not request.ignore_eos
        return RowRequest(request.sampling, len(request.prompt_ids) + index, request.stop_ids if hold else frozenset())
