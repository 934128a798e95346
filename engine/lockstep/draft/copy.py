"""Copy drafts: what followed the last place where the newest tokens stood before. Knows one conversation, no tensors and no model.

Source: prompt lookup decoding; lengths and the guard against loops are this engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import mul

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

PROMPT_GRAM = 8
REPLY_GRAM = 16
LONGEST_COPY = 15
LOOK_BACK = 1 << 16
# Factors of a hash of grams, of which bits 48 to 63 are used: any odd numbers do.
_FACTORS = tuple(0x9E3779B97F4A7C15 ** (at + 1) % (1 << 64) for at in range(PROMPT_GRAM))
# Grams with one hash that are compared: a prompt made of such grams must not cost more than a missed copy.
_MOST_COMPARED = 32


class CopyIndex:
    """Places of n-grams in prompt and reply. A place inside the reply must agree on 16 tokens, since loops agree on few; else on 8.

    The next copy has at most `length` tokens, `longest` at first: one that fails halves it, one not known to fail doubles it.
    """

    def __init__(self, prompt_tokens: int, longest: int = LONGEST_COPY) -> None:
        self._prompt_tokens, self._longest = prompt_tokens, longest
        self.length = longest
        self._open: tuple[int, ...] = ()
        self._tokens: list[int] = []
        self._in_reply: dict[int, int] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Take the next tokens of the conversation, prompt first."""
        known, tokens = self._tokens, list(tokens)
        plain = max(self._prompt_tokens + 1 - len(known), 0)
        known += tokens[:plain]
        for token in tokens[plain:]:
            if len(known) >= REPLY_GRAM:
                self._in_reply[hash(tuple(known[-REPLY_GRAM:]))] = len(known)
            known.append(token)

    def propose(self, limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens that followed the newest tokens at their latest earlier place; none if there is no such place."""
        known = self._tokens
        place = self._place()
        if place is None:
            self._open = ()
            return ()
        # A place so near that its continuation runs into the present goes on with the copy itself.
        period = len(known) - place
        self._open = tuple(known[place + at % period] for at in range(min(limit, self.length)))
        return self._open

    def settle(self, following: Sequence[int]) -> None:
        """Learn what followed the last proposal, whether or not it was used."""
        if not self._open:
            return
        seen = min(len(self._open), len(following))
        if tuple(following[:seen]) != self._open[:seen]:
            self.length = max(1, self.length // 2)
        else:
            self.length = min(self._longest, 2 * self.length)
        self._open = ()

    def _place(self) -> int | None:
        known = self._tokens
        said = self._in_reply.get(hash(tuple(known[-REPLY_GRAM:])))
        for gram, places in ((REPLY_GRAM, () if said is None else (said,)), (PROMPT_GRAM, self._prompt_places())):
            newest = known[-gram:]
            for place in places:
                if gram <= place < len(known) <= place + LOOK_BACK and known[place - gram : place] == newest:
                    return place
        return None

    def _prompt_places(self) -> Sequence[int]:
        """Places in the prompt behind what may be the newest tokens, the latest first."""
        if not PROMPT_GRAM <= self._prompt_tokens <= len(self._tokens):
            return ()
        first, hashes, order = self._prompt_grams
        newest = np.uint16(sum(map(mul, self._tokens[-PROMPT_GRAM:], _FACTORS)) >> 48 & 0xFFFF)
        start, end = hashes.searchsorted(newest, "left"), hashes.searchsorted(newest, "right")
        return (order[max(start, end - _MOST_COMPARED) : end][::-1] + first).tolist()

    @cached_property
    def _prompt_grams(self) -> tuple[int, NDArray[np.uint16], NDArray[np.intp]]:
        """Of the prompt's newest tokens: the first place behind a gram, hashes in order, and the place of each, counted from the first.

        Made when the first copy is looked for: a prompt begun from a kept state brings all its tokens at once, between two steps.
        """
        first = max(self._prompt_tokens - LOOK_BACK, 0)
        grams = sliding_window_view(np.array(self._tokens[first : self._prompt_tokens], np.uint64), PROMPT_GRAM)
        hashes = (grams @ np.array(_FACTORS[:PROMPT_GRAM], np.uint64) >> np.uint64(48)).astype(np.uint16)
        order = hashes.argsort(kind="stable")
        return first + PROMPT_GRAM, hashes[order], order
