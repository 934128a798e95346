"""A prompt's prefixes by name: one digest for every multiple of 64 tokens, chained, so that equal digests mean equal prefixes.

Knows the request only; who keeps what is `sched.kept`.
"""

from __future__ import annotations

import hashlib
from array import array

from lockstep.core.grid import TILE, last_tile
from lockstep.core.types import EngineRequest

Key = tuple[bytes, tuple[int, ...]]
_DIGEST_BYTES = 16


class Trace:
    """Digests of the prefixes of one prompt in its namespace. A prefix of `tokens` tokens is named by the digest of its whole tiles and
    the ids behind them (`EngineRequest.identity`).

    Drafting is part of the namespace: a state made without a drafter lacks what a drafter remembers.
    """

    def __init__(self, request: EngineRequest) -> None:
        self.ids, self.namespace = request.identity, f"{request.namespace}/{'draft' if request.draft else 'serial'}"
        self.marks = tuple(mark // TILE * TILE for mark in request.marks if 0 < mark <= len(self.ids))
        digest = hashlib.blake2b(self.namespace.encode(), digest_size=_DIGEST_BYTES).digest()
        chain, packed = [digest], memoryview(array("Q", self.ids).tobytes())
        width = len(packed) // len(self.ids) * TILE
        for at in range(0, len(self.ids) // TILE * width, width):
            digest = hashlib.blake2b(packed[at : at + width], digest_size=_DIGEST_BYTES, key=digest).digest()
            chain.append(digest)
        self.chain = tuple(chain)

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def last_tile(self) -> int:
        """Where the tile with the prompt's last token begins."""
        return last_tile(len(self.ids))

    def key(self, tokens: int) -> Key:
        """Name of the prefix of `tokens` tokens."""
        whole = tokens // TILE
        return self.chain[whole], self.ids[whole * TILE : tokens]

    def shared_tokens(self, other: Trace) -> int:
        """How many tokens both begin with, counted in whole tiles; all of them if the prompts are equal."""
        if self.chain[-1] == other.chain[-1] and self.ids == other.ids:
            return len(self.ids)
        equal = (at for at, (one, two) in enumerate(zip(self.chain, other.chain, strict=False)) if one != two)
        return (next(equal, min(len(self.chain), len(other.chain))) - 1) * TILE if self.namespace == other.namespace else 0
