"""Messages between rank 0 and another rank, each direction one union. Encoded by `lockstep.channel`; see `run.ranks` for who says what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Begin:
    """First word to a rank: where the ranks meet (`run.exchange`), and the settings of rank 0 by name."""

    address: str
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """Execute `plan`, an encoded StepPlan, as step `step`.

    `before` is the digest of all that rank 0 chose so far, `digest` that of plan and settings (`run.team`).
    """

    step: int
    plan: bytes
    before: str
    digest: str


@dataclass(frozen=True, slots=True)
class HashState:
    """Answer with a RankHash of this request's state."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Leave:
    """End with status 0."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The rank has loaded its share and waits for plans; `settings` is the digest of its own."""

    rank: int
    settings: str


@dataclass(frozen=True, slots=True)
class Ran:
    """The rank has run step `step`; `chosen` is the digest of all tokens it chose since it started."""

    rank: int
    step: int
    chosen: str


@dataclass(frozen=True, slots=True)
class RankHash:
    """State hash of a request over this rank's share."""

    request_id: str
    state_hash: str


ToRank = Begin | Run | HashState | Leave
FromRank = Joined | Ran | RankHash
