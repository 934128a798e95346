"""Who owns which slot and which page. Lowest free number first, so that a run repeats itself."""

import heapq
from collections.abc import Iterable


class Ledger:
    """Numbers 0 .. count - 1, handed out and taken back. A number may have several owners; it is free again when the last one is gone.

    Keepers are owners who would give a number up if asked: a number that only keepers own is one of the `idle` ones, which are counted.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._owners, self._keepers = [0] * count, [0] * count
        self.idle = 0

    @property
    def free(self) -> int:
        return len(self._free)

    def is_idle(self, number: int) -> bool:
        """True if only keepers own `number`."""
        return 0 < self._owners[number] == self._keepers[number]

    def owners(self, number: int) -> int:
        """How many own `number`, keepers included."""
        return self._owners[number]

    def take(self, count: int) -> tuple[int, ...]:
        """Own `count` numbers alone. The caller has looked at `free` first."""
        numbers = tuple(heapq.heappop(self._free) for _ in range(count))
        for number in numbers:
            self._owners[number] = 1
        return numbers

    def share(self, numbers: Iterable[int]) -> None:
        """Own numbers that somebody owns already. Raises ValueError for a free number."""
        self._add(numbers, 0)

    def keep(self, numbers: Iterable[int]) -> None:
        """The same as a keeper."""
        self._add(numbers, 1)

    def give_back(self, numbers: Iterable[int]) -> None:
        """Give up numbers taken or shared. Raises ValueError for a number that has no owner but keepers."""
        self._remove(numbers, 0)

    def let_go(self, numbers: Iterable[int]) -> None:
        """Give up numbers kept. Raises ValueError for a number that has no keeper."""
        self._remove(numbers, 1)

    def _add(self, numbers: Iterable[int], keepers: int) -> None:
        for number in numbers:
            if not self._owners[number]:
                raise ValueError(f"number {number} is free; needed: one that is owned")
            self.idle -= self.is_idle(number)
            self._owners[number] += 1
            self._keepers[number] += keepers
            self.idle += self.is_idle(number)

    def _remove(self, numbers: Iterable[int], keepers: int) -> None:
        for number in numbers:
            kept = self._keepers[number]
            if not (kept if keepers else self._owners[number] - kept):
                raise ValueError(f"number {number} has no such owner; needed: one that was taken, shared or kept before")
            self.idle -= self.is_idle(number)
            self._owners[number] -= 1
            self._keepers[number] -= keepers
            self.idle += self.is_idle(number)
            if not self._owners[number]:
                heapq.heappush(self._free, number)
