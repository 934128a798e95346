"""Packs documents into rows of one length, each document starting at a multiple of `align`. Knows arrays only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from embedded.make.data.encoding import Document

START = 4
OPEN_ROWS = 32


@dataclass(slots=True)
class Row:
    """`ids` uint16 [length], `marks` uint8 [length] (0 none, 1 given, 2 reply, +4 at a document's first token)."""

    ids: np.ndarray
    marks: np.ndarray
    used: int = 0
    pictures: list[tuple[int, np.ndarray]] = field(default_factory=list)


@dataclass(slots=True)
class Packer:
    """First fit over a few open rows; the fullest row leaves when nothing fits. Rows are padded with `pad_id`, marks 0."""

    length: int
    align: int
    pad_id: int
    open: list[Row] = field(default_factory=list)
    dropped: int = 0

    def add(self, document: Document) -> list[Row]:
        """Places a document; returns the rows that are complete now. A document longer than a row is dropped and counted."""
        size = len(document.ids)
        if size > self.length:
            self.dropped += 1
            return []
        row = next((row for row in self.open if row.used + size <= self.length), None)
        left: list[Row] = []
        if row is None:
            if len(self.open) >= OPEN_ROWS:
                fullest = max(range(len(self.open)), key=lambda index: self.open[index].used)
                left.append(self.open.pop(fullest))
            row = Row(np.full(self.length, self.pad_id, np.uint16), np.zeros(self.length, np.uint8))
            self.open.append(row)
        start = row.used
        row.ids[start : start + size] = document.ids
        row.marks[start : start + size] = document.marks
        row.marks[start] = START
        row.pictures += [(start + place, frames) for place, frames in document.pictures]
        row.used = -(-(start + size) // self.align) * self.align
        return left

    def flush(self) -> list[Row]:
        """All open rows, in order; the packer is empty afterwards."""
        rows, self.open = self.open, []
        return rows
