"""Replies of the Responses API that may be asked for or continued by their id: the newest, in memory. Knows no HTTP."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

MOST_ENTRIES, MOST_BYTES, TOKEN_BYTES = 1024, 256 << 20, 16


@dataclass(frozen=True, slots=True)
class Stored:
    """A reply, and all items of its conversation up to and with its own. Only its `owner` may see it.

    `size` counts bytes as they were sent, and TOKEN_BYTES for each token of a reply."""

    reply: dict[str, Any]
    items: tuple[dict[str, Any], ...]
    owner: str
    size: int


class ResponseStore:
    """The oldest go first."""

    def __init__(self, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES) -> None:
        self._most_entries, self._most_bytes, self._bytes = most_entries, most_bytes, 0
        self._known: OrderedDict[str, Stored] = OrderedDict()

    def put(self, stored: Stored) -> None:
        """Keep a reply under its id. One past all bounds is not kept."""
        if stored.size > self._most_bytes:
            return
        self._known[stored.reply["id"]] = stored
        self._bytes += stored.size
        while len(self._known) > self._most_entries or self._bytes > self._most_bytes:
            self._bytes -= self._known.popitem(last=False)[1].size

    def get(self, name: str, owner: str) -> Stored | None:
        """The reply of that id, None if there is none or it is another's."""
        found = self._known.get(name)
        return found if found and found.owner == owner else None

    def drop(self, name: str, owner: str) -> bool:
        """Forget a reply; False if there is none or it is another's."""
        if self.get(name, owner) is None:
            return False
        self._bytes -= self._known.pop(name).size
        return True
