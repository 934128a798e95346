"""Replies that repeat themselves without end. Knows ids, no text."""

from collections.abc import Sequence

LONGEST_CYCLE = 16


def cycle(tokens: Sequence[int], limit: int) -> int:
    """Length of the shortest cycle, of at most LONGEST_CYCLE ids, that the last `limit` ids are made of; 0 if there is none.

    A cycle fits in at least twice. `limit` 0 finds none.
    """
    # exact: a function of the reply's ids alone, so neither drafts nor rounds move the place where a reply ends.
    if len(tokens) < limit:
        return 0
    for length in range(1, min(LONGEST_CYCLE, limit // 2) + 1):
        if tokens[-1] == tokens[-1 - length] and tokens[length - limit :] == tokens[-limit:-length]:
            return length
    return 0
