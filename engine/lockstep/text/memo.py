"""What was seen lately: ids of pieces of text, so that a conversation that comes back is cut into tokens only where it grew, and thoughts.

Knows no template. A piece is encoded on its own, whatever stands around it, so remembered ids are the ids it would get again.
"""

import threading
from collections.abc import Sequence

from lockstep.core.recent import Recent
from lockstep.text.tokenizer import LIKELY_CHARACTERS, Tokenizer

MOST_CHARACTERS = 1 << 24
# What an entry costs beside its text.
_ENTRY_CHARACTERS = 256


class PieceMemo:
    """Least recently used pieces go first. Owners share nothing: how long a text takes to encode must not tell who else sent it."""

    def __init__(self, tokenizer: Tokenizer, most_characters: int = MOST_CHARACTERS) -> None:
        self._tokenizer = tokenizer
        # Every id once: what is remembered, and every prompt made of it, takes 8 bytes a token and not 36.
        self._ids = tuple(range(tokenizer.size))
        self._kept = Recent[tuple[str, str], tuple[int, ...]](most_characters)
        self._lock = threading.Lock()

    def encode_many(self, texts: Sequence[str], limit: int | None, owner: str) -> Sequence[Sequence[int]]:
        """As `Tokenizer.encode_many`."""
        if limit is not None and sum(map(len, texts)) > LIKELY_CHARACTERS * limit:
            return self._tokenizer.encode_many(texts, limit)
        with self._lock:
            found = {text: self._kept.get((owner, text)) for text in texts}
        missing = [text for text, ids in found.items() if ids is None]
        fresh = self._tokenizer.encode_many(missing, limit)
        encoded = {text: tuple(map(self._ids.__getitem__, ids)) for text, ids in zip(missing, fresh, strict=True)}
        with self._lock:
            for text, ids in encoded.items():
                self._kept.put((owner, text), ids, len(text) + _ENTRY_CHARACTERS)
        return [encoded[text] if (ids := found[text]) is None else ids for text in texts]


class ThoughtMemo:
    """Thoughts that led to calls, by owner and the calls' first id: a client that dropped one is rendered the prompt it had, whose states
    are kept. The least recently used go first."""

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._kept, self._lock = Recent[tuple[str, str], str](most_characters), threading.Lock()

    def put(self, owner: str, call: str, thought: str) -> None:
        """Remember `thought`, which led to the call of this id."""
        with self._lock:
            self._kept.put((owner, _bare(call)), thought, len(thought) + _ENTRY_CHARACTERS)

    def get(self, owner: str, call: str) -> str | None:
        """The thought that led to a call, in whichever dialect its id stands."""
        with self._lock:
            return self._kept.get((owner, _bare(call)))


def _bare(call: str) -> str:
    return call.removeprefix("toolu_").removeprefix("call_")
