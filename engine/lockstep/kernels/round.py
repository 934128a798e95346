"""What the rows of a step are told on a CUDA device, in memory that a captured graph reads again. Knows no layer and no page.

The layout is that of `Plan` in `device.cuh`. Nothing here depends on lengths, so one graph serves every step of as many rows."""

from dataclasses import dataclass

from torch import Tensor

HEAD, FIELDS, SEQUENCE_FIELDS = 4, 6, 4


@dataclass(frozen=True, slots=True)
class Round:
    """A step of at most `rows` rows of at most `most` sequences; rows behind those of the plan are padding and do nothing.

    `plan` and `pages [>= most, n]` int32 say where rows stand. `kda`, `conv_tail`, `index_tail` are the memory of all layers, see
    `StateSlots`; `projected [KDA layers, rows, n]` and `raw [DSA layers, rows, 2 d]` keep what a commit needs. `scores [rows, pools]`
    fp32 is there if a row may have to choose its pools."""

    rows: int
    most: int
    plan: Tensor
    pages: Tensor
    kda: Tensor
    conv_tail: Tensor
    index_tail: Tensor
    projected: Tensor
    raw: Tensor
    scores: Tensor | None


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole tiles of one sequence's prompt: `count` rows from position `first` on, in `slot`, whose committed state is `copy`.

    Of `at` the plan, one page list, the memory and `raw` are there."""

    at: Round
    slot: int
    copy: int
    first: int
    count: int


def plan_size(rows: int, most: int) -> int:
    """Values of a plan."""
    return keeps_at(rows, most) + most


def keeps_at(rows: int, most: int) -> int:
    """Where the rows to keep of each sequence stand in a plan."""
    return HEAD + FIELDS * rows + rows + 1 + (SEQUENCE_FIELDS - 1) * most
