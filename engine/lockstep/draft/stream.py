"""What runner and drafters say to each other: a request on the device, its committed rows, the drafts wanted and given."""

from dataclasses import dataclass

from torch import Tensor

from lockstep.cache import Saved, Sequence, TokenPool
from lockstep.core.types import EngineRequest


@dataclass(slots=True)
class Stream:
    """A request on the device. `pending` is its newest token, chosen but not yet run; `generated` counts chosen tokens."""

    request: EngineRequest
    sequence: Sequence
    pending: int = -1
    generated: int = 0

    @property
    def position(self) -> int:
        """Position of the token to choose next, which the first draft guesses."""
        return len(self.request.prompt_ids) + self.generated


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of a stream that were just committed, positions `start` and on: the token after each, and `taps [len(taps), n, D]`."""

    stream: Stream
    start: int
    following: tuple[int, ...]
    taps: Tensor


@dataclass(frozen=True, slots=True)
class Ask:
    """Up to `limit` >= 1 drafts behind the pending token of a stream."""

    stream: Stream
    limit: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts in order. `chances` are the drafter's own probabilities, one a draft, or none if it has no opinion."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()


class Drafter:
    """Guesses tokens. Nothing it does can change a reply; this one never guesses.

    Called for streams that want drafts only. `taps` are the outputs it reads, see `GlmModel.run_step`.
    """

    taps: tuple[int, ...] = ()
    pool: TokenPool | None = None

    def admit(self, stream: Stream, known: int = 1) -> None:
        """A stream enters with an empty state slot. Of its prompt `known` tokens are told here, the others by `absorb`."""

    def save(self, stream: Stream) -> Saved:
        """What is remembered of a stream beyond its pages in `pool` (the drafter's own pool under the trunk's page numbers)."""
        return {}

    def restore(self, stream: Stream, saved: Saved) -> None:
        """Remember of an admitted stream what `save` returned, of it or of another with the same rows; slot and pages may be others."""

    @property
    def stream_bytes(self) -> int:
        """Host bytes of what `save` returns at most."""
        return 0

    def release(self, stream: Stream) -> None:
        """A stream has ended; its slot may be given to another."""

    def absorb(self, kept: list[Kept]) -> None:
        """Learn of committed rows, in order and without gaps for each stream; `stream.pending` is already the newest token."""

    def propose(self, asks: list[Ask]) -> list[Proposal]:
        """One proposal per ask, at most `limit` drafts each."""
        return [Proposal() for _ in asks]

    def timed(self, rows: int, seconds: float) -> None:
        """A forward pass over `rows` rows, sampling input included, took so long."""
