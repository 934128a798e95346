"""Batches for the `polish` stage: short documents only, one a row, made in this process. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import torch
from embedded.make.batch import Batch, of_rows
from embedded.make.data.encoding import Document, Encoder
from embedded.make.data.mixture import sample

# What short training left weakest; None is the whole mixture, so that nothing is unlearned meanwhile.
TASKS: tuple[tuple[str | None, float], ...] = (("sum", 6.0), ("exact_word", 1.0), (None, 3.0))


@dataclass(slots=True)
class ShortFeed:
    """`tokens` per batch in rows of `length`; a document that is longer or shows a picture is left out."""

    encoder: Encoder
    device: str
    tokens: int
    length: int
    seed: int
    long_length: int = 0
    long_share: float = 1.0
    rounds: int = 0
    _rng: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        self._rng.seed(self.seed)

    def batch(self, is_long: bool) -> Batch:
        """A batch of training documents; `is_long` asks for nothing here, all are short."""
        rows = self.tokens // self.length
        ids, marks = np.zeros((rows, self.length), np.int32), np.zeros((rows, self.length), np.uint8)
        for row in range(rows):
            document = self._document()
            ids[row, : len(document.ids)], marks[row, : len(document.ids)] = document.ids, document.marks
            marks[row, 0] = 4
        return of_rows(torch.from_numpy(ids).to(self.device), torch.from_numpy(marks).to(self.device))

    def _document(self) -> Document:
        names, weights = zip(*TASKS, strict=True)
        while True:
            found = self.encoder.document(sample(self._rng, "train", self._rng.choices(names, weights)[0]))
            if len(found.ids) <= self.length and not found.pictures:
                return found

    def stop(self) -> None:
        """Nothing runs in the background."""
