"""How one prompt uses kept states: where it begins, whom it waits for, where its slices end and which states they leave.

Knows neither queue nor slots; the index of states is `sched.kept`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.core.grid import TILE, pages_of
from lockstep.core.plan import PromptSlice, Restore, StepPlan, StepResult
from lockstep.core.types import EngineRequest
from lockstep.sched.kept import KeptPrompts, KeptState
from lockstep.sched.trace import Trace


@dataclass(slots=True)
class PromptWork:
    """A prompt between submit and first reply token. `done` of its tokens are committed, the first `cached` of them from a kept state.

    `points` are the lengths behind `done` at which a state is to be kept, ascending.
    """

    request: EngineRequest
    trace: Trace
    done: int = 0
    cached: int = 0
    points: list[int] = field(default_factory=list)
    has_waited: bool = False

    @property
    def tokens(self) -> int:
        return self.trace.tokens

    @property
    def runs_all(self) -> bool:
        """True if every row has something to tell, so that no state may stand in for rows."""
        return self.request.prompt_logprobs >= 0


class PromptReuse:
    """Begins prompts from the states of `kept` and cuts them where states are to be made."""

    def __init__(self, kept: KeptPrompts) -> None:
        self.kept = kept

    def must_wait(self, work: PromptWork, running: Iterable[PromptWork]) -> bool:
        """True if a prompt under way will soon leave a longer common prefix than any kept state; it is told to keep one there. True as well
        if the state to begin from is just being read from disk.
        """
        if not self.kept.limits.on or work.runs_all:
            return False
        known = self.kept.find(work.trace)
        if known and self.kept.is_arriving(known):
            return True
        best = known.tokens if known else 0
        for other in running:
            shared = work.trace.shared_tokens(other.trace)
            common = shared if shared == work.tokens == other.tokens else min(shared, work.trace.last_tile)
            if common >= max(best + TILE, self.kept.limits.least_tokens) and other.done < common:
                if common not in other.points:
                    other.points = sorted([*other.points, common])
                if not work.has_waited:
                    work.has_waited = True
                    self.kept.totals.waits += 1
                return True
        return False

    def source(self, work: PromptWork) -> KeptState | None:
        """The state a prompt would begin from now."""
        return None if work.runs_all else self.kept.find(work.trace)

    def begin(self, work: PromptWork, state: KeptState | None) -> Restore | None:
        """Begin a prompt, from `state` if there is a readable one. Its pages are those of `KeptPrompts.shared_pages`, then private ones."""
        start = state.tokens if state else 0
        work.done = work.cached = start
        work.points = self.kept.points(work.trace, start)
        return self.kept.restore(state) if state else None

    def ran(self, work: PromptWork, piece: PromptSlice) -> None:
        """A slice is committed."""
        work.done += piece.count
        if piece.last:
            self.kept.totals.asked_tokens += work.tokens
            self.kept.totals.hit_tokens += work.cached

    def skipped(self, plan: StepPlan, result: StepResult) -> None:
        """Forget the states that prompts of `result.lost` were to begin from, and to leave, in `plan`."""
        for admission in plan.admissions:
            if admission.restore and admission.request.id in result.lost:
                self.kept.totals.lost += 1
                self.kept.forget(admission.restore.kept)
        for piece in plan.prompts:
            if piece.keep and piece.request_id in result.lost:
                self.kept.forget(piece.keep)

    def slices(self, work: PromptWork, budget: int, pages: tuple[int, ...]) -> list[PromptSlice]:
        """Slices of at most `budget` > 0 rows together, cut at the lengths at which states are kept; `pages` hold the prompt.

        A prompt restored at its end gets one of no rows, which chooses its first reply token.
        """
        slices: list[PromptSlice] = []
        at, stop = work.done, min(work.tokens, work.done + budget)
        while at < stop or (not slices and at == work.tokens):
            end = next((point for point in work.points if at < point < stop), stop)
            keep = self.kept.keep(work.trace, end, pages[: pages_of(end)]) if end in work.points else 0
            slices.append(PromptSlice(work.request.id, at, end - at, end == work.tokens, keep))
            at = end
        return slices
