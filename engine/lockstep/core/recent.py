"""What was used lately, as much of it as fits: the one bounded memory for what can be made again. Knows no contents and no threads."""

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values of at most `most` in size together, the least recently used forgotten first. `spares_newest` keeps a larger one alone."""

    def __init__(self, most: int, spares_newest: bool = False) -> None:
        self._most, self._spared, self._size = most, int(spares_newest), 0
        # A dict keeps the order in which its keys came.
        self._held: dict[Key, tuple[Value, int]] = {}

    def get(self, key: Key) -> Value | None:
        """The value of `key`, which is the newest from here on; None if there is none."""
        if (found := self._held.pop(key, None)) is None:
            return None
        self._held[key] = found
        return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep `value`, which takes `size`, as the newest."""
        self._size += size - (self._held.pop(key)[1] if key in self._held else 0)
        self._held[key] = value, size
        while self._size > self._most and len(self._held) > self._spared:
            self._size -= self._held.pop(next(iter(self._held)))[1]
