"""A reply's way through its grammar: which ids a row may choose, which drafts are worth a row. Knows ids, no tensors and no library.

A mask is a function of the grammar and the ids chosen so far, so it is the same drafted or not, alone or not, and on every rank.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grammars.protocol import Backend
from lockstep.core.types import EngineRequest


class Constraint:
    """Of one request. Is there an id behind which its grammar begins, nothing is masked before, and the reply cannot end there."""

    def __init__(self, request: EngineRequest, backend: Backend) -> None:
        grammar = request.grammar
        assert grammar is not None
        self._matcher = backend.matcher(grammar.data)
        self._opener, self._stops = grammar.begins_behind, request.stop_ids
        self._is_open = self._opener < 0
        self._masks: list[NDArray[np.bool_]] = []
        self._planned: list[int] = []

    @property
    def held_back(self) -> frozenset[int]:
        """Ids that are banned while the grammar has not begun: what would end the reply."""
        return frozenset() if self._is_open else self._stops

    def allowed(self) -> NDArray[np.bool_] | None:
        """bool [V] of the next row, None for all."""
        if not self._is_open:
            return None
        return self._masks.pop(0) if self._masks else self._matcher.allowed()

    def ahead(self, drafts: Sequence[int]) -> list[tuple[NDArray[np.bool_] | None, frozenset[int]]]:
        """`allowed` and `held_back` of the next row and, behind it, of each of `drafts`, which `drafts` gave last, should all be chosen."""
        if self._is_open:
            found, self._masks = self._masks or [self._matcher.allowed()], []
            # Behind a draft that ends the reply nothing is ever chosen.
            return [(mask, frozenset()) for mask in (*found, *[None] * (1 + len(drafts) - len(found)))]
        rows: list[tuple[NDArray[np.bool_] | None, frozenset[int]]] = [(None, self._stops)] * (1 + len(drafts))
        if drafts and drafts[-1] == self._opener:
            rows[-1] = (self._matcher.allowed(), frozenset())
        return rows

    def take(self, token: int) -> None:
        """An id was chosen."""
        if self._is_open:
            self._matcher.accept(token)
        self._is_open = self._is_open or token == self._opener
        if not self._planned or self._planned.pop(0) != token:
            self._masks, self._planned = [], []

    def drafts(self, proposed: Sequence[int], most: int) -> tuple[int, ...]:
        """`proposed` up to the first that the grammar forbids, then ids that it leaves no choice about; at most `most`.

        The masks found on the way are those of the rows to come, as long as the drafts are the ids chosen.
        """
        if not self._is_open:
            at = proposed.index(self._opener) + 1 if self._opener in proposed else len(proposed)
            return tuple(proposed[:at])
        kept: list[int] = []
        self._masks = []
        while True:
            mask = self._matcher.allowed()
            self._masks.append(mask)
            if len(kept) == most:
                break
            draft = proposed[len(kept)] if len(kept) < len(proposed) else -1
            if draft < 0 or not mask[draft]:
                proposed = ()
                draft = int(mask.argmax())
                if np.count_nonzero(mask) != 1:
                    break
            self._matcher.accept(draft)
            kept.append(draft)
            if self._matcher.is_terminated:
                break
        self._matcher.rollback(len(kept))
        self._planned = list(kept)
        return tuple(kept)
