"""What a grammar engine has to offer, whichever library is behind it. Knows ids and bytes, no requests and no text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.core.errors import LockstepError

Form = dict[str, Any]
"""What a reply must look like, as a tree of formats (`grammar.formats`, `grammar.calls`)."""


class GrammarError(LockstepError):
    """A grammar that cannot be used. The text goes to whoever sent it."""


class Spelled(Protocol):
    """What a vocabulary needs of `text.tokenizer.Tokenizer`."""

    added: dict[str, int]
    size: int

    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of every id below `len(spellings)`, and the ids that end a reply."""

    spellings: tuple[bytes, ...]
    stops: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Spelled, stops: Iterable[int]) -> Vocabulary:
        """Added tokens are reached by their number only: they get bytes that begin no character, so no text ever matches them."""
        added = frozenset(tokenizer.added.values())
        told = (b"\xff" + token.to_bytes(4, "big") if token in added else tokenizer.token_bytes(token) for token in range(tokenizer.size))
        return cls(tuple(told), tuple(stops))


class Matcher(Protocol):
    """One reply on its way through a grammar."""

    def allowed(self) -> NDArray[np.bool_]:
        """bool [V]: the ids that may come next. None may once the reply has ended, or if the grammar leads nowhere."""
        ...

    def accept(self, token: int) -> bool:
        """Take an id; False, and nothing changed, if it may not come next."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` ids."""
        ...

    @property
    def is_terminated(self) -> bool:
        """True once an id that ends replies was taken."""
        ...


class Backend(Protocol):
    """A grammar library and a vocabulary."""

    def compile(self, form: Form) -> bytes:
        """The grammar of `form`, for `matcher` here or in another process. Raises GrammarError."""
        ...

    def matcher(self, compiled: bytes) -> Matcher:
        """At the begin of a reply. Same bytes and same ids give the same masks everywhere."""
        ...
