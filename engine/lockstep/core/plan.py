"""The contract between scheduler and runner: what one step runs, and what came of it."""

from dataclasses import dataclass, field

from lockstep.core.types import EngineRequest, TokenLogprob


@dataclass(frozen=True, slots=True)
class Restore:
    """Begin a prompt behind its first `tokens` tokens, from kept state `kept`.

    The request's pages but the one with the last of these tokens are the state's own; that one is private and gets what page `source`
    holds. Is `source` -1, the state is on disk and all pages are the request's; if it `stays`, the state is in memory from here on and owns
    them too.
    """

    kept: int
    tokens: int
    source: int = -1
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Spill:
    """Take kept state `kept`, whose tokens lie in `pages`, out of memory and write it to disk with `label`. Its pages are already free
    for `admissions`. Without pages it is on disk already.
    """

    kept: int
    pages: tuple[int, ...] = ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class Spilled:
    """A kept state that an earlier engine left on disk: its number, the label it was written with, its bytes."""

    kept: int
    label: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Admission:
    """A request enters: its state slot and pool pages for its prompt. Its reply's pages come one by one, see `Growth`."""

    request: EngineRequest
    slot: int
    pages: tuple[int, ...]
    restore: Restore | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """A request gets `pages` behind those it has."""

    request_id: str
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused request goes on in `slot`, on `pages` that cover its committed tokens."""

    request_id: str
    slot: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptSlice:
    """Run prompt tokens `start .. start + count - 1`. `last` asks for the first reply token; no tokens are left to run for it if the
    request was restored at its prompt's end. `keep` is the number under which to keep the state behind these tokens, 0 for none.
    """

    request_id: str
    start: int
    count: int
    last: bool
    keep: int = 0


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Run the pending token of a request and at most `max_drafts` drafts behind it; every row is sampled."""

    request_id: str
    max_drafts: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `releases` are requests that ended since the last plan, running or paused.

    What frees memory comes first, in this order: `releases`, `spills`, `drops` of kept states, `pauses`, which take a request's whole
    memory out. Slots and pages they name are free already, so `resumes`, `admissions` and `growths` may have them.
    """

    releases: tuple[str, ...] = ()
    admissions: tuple[Admission, ...] = ()
    prompts: tuple[PromptSlice, ...] = ()
    windows: tuple[StepWindow, ...] = ()
    spills: tuple[Spill, ...] = ()
    drops: tuple[int, ...] = ()
    pauses: tuple[str, ...] = ()
    resumes: tuple[Resume, ...] = ()
    growths: tuple[Growth, ...] = ()

    @property
    def has_rows(self) -> bool:
        """True if the model has something to run."""
        return bool(self.prompts or self.windows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Tokens chosen per request, in order: the accepted drafts and one more. `failed` names requests whose row could not be sampled.

    `logprobs` are those of `tokens`, `prompt_logprobs` those of the prompt tokens behind the rows run, for requests that asked.
    `drafted` counts the drafts run per request, for those that had any. `lost` names requests whose kept state could not be read back:
    they hold their slot and pages, are empty, and none of their prompt slices was run.
    """

    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    logprobs: dict[str, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    prompt_logprobs: dict[str, tuple[TokenLogprob, ...]] = field(default_factory=dict)
