"""Who owns which slot and which page. Lowest free number first, so that a run repeats itself."""

from __future__ import annotations

import heapq


class Ledger:
    """Numbers 0 .. count - 1, handed out and taken back."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))

    @property
    def free(self) -> int:
        """How many numbers nobody owns."""
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Own `count` numbers. The caller has looked at `free` first."""
        return tuple(heapq.heappop(self._free) for _ in range(count))

    def give_back(self, numbers: tuple[int, ...]) -> None:
        """Return numbers taken before."""
        for number in numbers:
            heapq.heappush(self._free, number)
