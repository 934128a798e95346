"""Who owns which slot and which page. Lowest free number first, so that a run repeats itself."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Ledger:
    """Numbers 0 .. count - 1, handed out and taken back. A number may have several owners; it is free again when the last one is gone."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._owners = [0] * count

    @property
    def free(self) -> int:
        """How many numbers nobody owns."""
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Own `count` numbers alone. The caller has looked at `free` first."""
        numbers = tuple(heapq.heappop(self._free) for _ in range(count))
        for number in numbers:
            self._owners[number] = 1
        return numbers

    def share(self, numbers: Iterable[int]) -> None:
        """Own numbers that somebody owns already; `give_back` them like any other. Raises ValueError for a free number."""
        for number in numbers:
            if not self._owners[number]:
                raise ValueError(f"number {number} is free; needed: one that is owned")
            self._owners[number] += 1

    def owners(self, number: int) -> int:
        """How many own `number`."""
        return self._owners[number]

    def give_back(self, numbers: Iterable[int]) -> None:
        """Give up numbers owned. Raises ValueError for a number nobody owns."""
        for number in numbers:
            if not self._owners[number]:
                raise ValueError(f"number {number} is free already; needed: one that is owned")
            self._owners[number] -= 1
            if not self._owners[number]:
                heapq.heappush(self._free, number)
