"""The contract between scheduler and runner: what one step runs, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.core.types import EngineRequest


@dataclass(frozen=True, slots=True)
class Admission:
    """A request enters: its state slot and the pool pages it owns until it is released, enough for its prompt and its longest reply."""

    request: EngineRequest
    slot: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptSlice:
    """Run prompt tokens `start .. start + count - 1`. `last` asks for the first reply token."""

    request_id: str
    start: int
    count: int
    last: bool


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Run the pending token of a request and at most `max_drafts` drafts behind it; every row is sampled."""

    request_id: str
    max_drafts: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `releases` are requests that ended since the last plan: their slots and pages are already free for `admissions`."""

    releases: tuple[str, ...] = ()
    admissions: tuple[Admission, ...] = ()
    prompts: tuple[PromptSlice, ...] = ()
    windows: tuple[StepWindow, ...] = ()

    @property
    def has_rows(self) -> bool:
        """True if the model has something to run."""
        return bool(self.prompts or self.windows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Tokens chosen per request, in order: the accepted drafts and one more. `failed` names requests whose row could not be sampled.

    `drafted` counts the drafts run per request, for those that had any.
    """

    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
