"""From packed rows to what the model's forward needs, on any device. Knows marks and places, no file and no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

NOT_A_LABEL = -1
START_BIT, KIND_BITS = 4, 3


@dataclass(frozen=True, slots=True)
class Batch:
    """N = rows x length tokens, row after row.

    `ids [N]` int64; `document [N]` int32, equal within one document; `position [N]` int32, counted from the document's first
    token; `kind [N]` uint8, 0 no loss, 1 given, 2 reply. `frames [images, 2, 112, 112]` uint8 palette indices and `places
    [images]` int64, the flat index of the first placeholder token of each.
    """

    rows: int
    ids: Tensor
    document: Tensor
    position: Tensor
    kind: Tensor
    frames: Tensor | None = None
    places: Tensor | None = None

    @property
    def length(self) -> int:
        return len(self.ids) // self.rows

    def ahead(self, distance: int) -> Tensor:
        """Ids `distance` tokens later, [N]; NOT_A_LABEL where the document has ended or the token bears no loss."""
        ids, document, kind = (torch.roll(t, -distance) for t in (self.ids, self.document, self.kind))
        good = (document == self.document) & (kind > 0)
        good[-distance:] = False
        return torch.where(good, ids, NOT_A_LABEL)

    def kind_ahead(self, distance: int) -> Tensor:
        return torch.roll(self.kind, -distance)


class Source(Protocol):
    """Where a stage's batches come from. `tokens` of each, in rows of `length` or `long_length`; `long_share` of the batches are long."""

    device: str
    tokens: int
    length: int
    long_length: int
    long_share: float
    rounds: int

    def batch(self, is_long: bool) -> Batch:
        """The next batch."""
        ...

    def stop(self) -> None:
        """Ends what runs in the background."""
        ...


def of_rows(ids: Tensor, marks: Tensor, frames: Tensor | None = None, places: Tensor | None = None) -> Batch:
    """`ids marks [rows, length]` as the shards hold them (see `data.packing`). Documents start at multiples of the pool size."""
    rows, length = ids.shape
    start = (marks & START_BIT) > 0
    start[:, 0] = True
    flat = start.flatten()
    index = torch.arange(rows * length, device=ids.device, dtype=torch.int32)
    first = torch.cummax(torch.where(flat, index, torch.zeros_like(index)), 0).values
    document = torch.cumsum(flat.int(), 0).int()
    return Batch(rows, ids.flatten().long(), document, index - first, (marks & KIND_BITS).flatten(), frames, places)
