"""Messages between the front process and the engine process, each direction one union. Encoded by `lockstep.channel`."""

from dataclasses import dataclass

from lockstep.core.rank_messages import Ran
from lockstep.core.types import EngineRequest, RoundEvent


@dataclass(frozen=True, slots=True)
class Submit:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Finish or cut what runs until `deadline_s` seconds from now, then exit 0."""

    deadline_s: float


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress while the engine starts: a stage name and a fraction in 0..1."""

    stage: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Ready:
    """Sent once, when the engine can admit requests."""

    context: int
    slots: int
    pool_tokens: int
    vocab_size: int
    device: str
    engine_version: str
    build_digest: str
    rank_settings: tuple[str, ...] = ()
    """With several ranks, the digest of each rank's settings."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why the engine is about to end, sent last: one line for people, and a word of `core.errors` if programs should know it too."""

    cause: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A Submit the engine could not take. `code` is a word of `core.errors`; no RoundEvent follows for this id."""

    request_id: str
    code: str
    message: str
    retry_after_s: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    events: tuple[RoundEvent, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Gauges and counters of the engine, sent at most every 100 ms while it works and once a second otherwise. Counters never fall.

    `running` requests have entered and not ended; `paused` of them own no memory at present. A request that finds the queue full should
    come again after `retry_after_s`.
    """

    running: int
    waiting: int
    pool_free_tokens: int
    steps_total: int
    prompt_tokens_total: int
    generated_tokens_total: int
    drafted_tokens_total: int
    accepted_tokens_total: int
    kept_prompts: int = 0
    kept_bytes: int = 0
    kept_disk_bytes: int = 0
    kept_asked_tokens_total: int = 0
    kept_hit_tokens_total: int = 0
    kept_evicted_total: int = 0
    kept_spilled_total: int = 0
    kept_lost_total: int = 0
    kept_waits_total: int = 0
    ranks: tuple[Ran, ...] = ()
    """With several ranks, the newest step each has reported."""
    paused: int = 0
    pauses_total: int = 0
    waiting_tokens: int = 0
    retry_after_s: int = 1
    kept_returned_total: int = 0


ToEngine = Submit | Cancel | Shutdown
FromEngine = Loading | Ready | Failed | Rejected | Round | Snapshot
