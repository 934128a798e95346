"""A launch table: the configuration each launch of a kernel runs with, as `python -m tuning` measured it. Knows no kernel, no device."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from lockstep.core.errors import LockstepError

Word = Annotated[str, Meta(min_length=1)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
Microseconds = Annotated[float, Meta(ge=0)]


class TableError(LockstepError):
    """A launch table that cannot be used here."""


class Refused(Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration that was not taken, and why."""

    configuration: dict[str, int]
    reason: Word


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """One launch: `case` is what its kernel is compiled for, `source` the digest of kernel and search space at that time."""

    kernel: Word
    case: list[int | str]
    source: Digest
    configuration: dict[str, int]
    default: dict[str, int]
    us: Microseconds
    default_us: Microseconds
    spread: Annotated[float, Meta(ge=0)]
    tried: Annotated[int, Meta(ge=0)]
    refused: list[Refused] = []


class Origin(Struct, frozen=True, forbid_unknown_fields=True):
    """What a table was made on and for. `build` is the digest of the kernels' files, `dense` the form of large matrices."""

    build: Digest
    gpu: Word
    capability: Annotated[str, Meta(pattern="^([0-9]+[.][0-9]+|cpu)$")]
    driver: str
    torch: Word
    nvrtc: str
    dense: Word
    ranks: Annotated[int, Meta(ge=1)]


class LaunchTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One that is not `complete` is for the next run of the tuner only."""

    complete: bool
    origin: Origin
    made: Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$")]
    entries: list[Entry]


def read_launch_table(path: Path) -> LaunchTable:
    """Raises TableError that names what is wrong with the file."""
    remedy = "needed: a table that `python -m tuning` wrote, or no --launch-table"
    try:
        return msgspec.json.decode(path.read_bytes(), type=LaunchTable)
    except OSError as error:
        raise TableError(f"launch table {path}: {error.strerror}; {remedy}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TableError(f"launch table {path}: {error}; {remedy}") from None
