"""What a layer is told about the rows of one forward pass: where they see, read and write. Plain values, built by the model."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lockstep.kernels.kda import RowInputs
from lockstep.kernels.round import Round, Slice


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Rows of one sequence with more candidate pools than they may select.

    `rows [n]` row numbers, `candidates [n, 1]` complete pools each may choose from, `pool_places [m]` storage place of the sequence's
    pool 0, 1, .., padded to the indexer's block with places of zero keys; all int64.
    """

    rows: Tensor
    candidates: Tensor
    pool_places: Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows that carry tokens, followed by padding up to `padded`. Index tensors are int64.

    `ids [padded]`; `positions` one per token row. `conv_index [padded, kernel]` and `member_index [padded, P]` point into the
    sources of `RowMemory`. `latent_places`, `pool_places [padded]` say where a row stores its latent and the pool ending with it
    (padding and rows that end no pool write to spare places). `keys [count, K']`, `key_bias [count, 1, K']` list each row's keys as if
    it selected pools 0, 1, ..; `scored` names the rows whose selection must replace the first index_topk of them. A step on a CUDA
    device has a `round`, one of prompts a `slice`, in place of all this but counts and ids.
    """

    count: int
    padded: int
    ids: Tensor
    positions: tuple[int, ...]
    conv_index: Tensor
    member_index: Tensor
    latent_places: Tensor
    pool_places: Tensor
    keys: Tensor
    key_bias: Tensor
    scored: tuple[ScoredRows, ...]
    round: Round | None = None
    slice: Slice | None = None


class RowMemory(Protocol):
    """Recurrent memory of the pass's sequences, by number of the KDA or DSA layer."""

    def conv_source(self, layer: int, rows: Tensor) -> Tensor:
        """Earlier convolution inputs followed by `rows`."""
        ...

    def index_source(self, layer: int, rows: Tensor) -> Tensor:
        """Earlier indexer rows followed by `rows`."""
        ...

    def delta_rule(self, layer: int, rows: RowInputs) -> Tensor:
        """Outputs of the recurrence for q, k, v, log decay, beta."""
        ...


@dataclass(frozen=True, slots=True)
class TokenStore:
    """Per-token storage of one DSA layer: `latents [token places, r]`, `pooled [pool places, d]`, and the layer's number in `RowMemory`.

    Both in the activation type, or as rows of `kernels.fp8.row_store`.
    """

    latents: Tensor
    pooled: Tensor
    layer: int
