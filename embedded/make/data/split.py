"""Which instances are held out: a hash of the instance decides, so training never sees one, whatever the seed. Knows no task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Literal, TypeVar

Split = Literal["train", "heldout"]
Item = TypeVar("Item")
HELD_OUT_ONE_IN = 8


def is_held_out(kind: str, key: str) -> bool:
    """True for one key in eight of each kind, the same on every machine."""
    digest = hashlib.blake2b(f"{kind}/{key}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_ONE_IN == 0


def draw(split: Split, kind: str, make: Callable[[], Item], key: Callable[[Item], str] = str) -> Item:
    """Calls `make` until the instance belongs to `split`. Raises RuntimeError if 2,000 tries find none."""
    wanted = split == "heldout"
    for _ in range(2000):
        item = make()
        if is_held_out(kind, key(item)) == wanted:
            return item
    raise RuntimeError(f"2,000 draws of {kind} found no instance of the {split} split; widen its generator")
