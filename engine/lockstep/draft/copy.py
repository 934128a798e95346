"""Copy drafts: what followed the last place where the newest tokens stood before. Standard library only; knows one conversation.

Source: prompt lookup decoding; lengths and the guard against loops are this engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PROMPT_GRAM = 8
REPLY_GRAM = 16
LONGEST_COPY = 15
LOOK_BACK = 1 << 16


class CopyIndex:
    """Places of n-grams in prompt and reply. A place inside the reply must agree on 16 tokens, since loops agree on few; else on 8.

    `longest` tokens at most are proposed; a copy that fails halves the next one, a copy that holds as far as one can tell doubles it.
    """

    def __init__(self, prompt_tokens: int, longest: int = LONGEST_COPY) -> None:
        self._prompt_tokens, self._longest = prompt_tokens, longest
        self._length = longest
        self._open: tuple[int, ...] = ()
        self._tokens: list[int] = []
        self._in_prompt: dict[int, int] = {}
        self._in_reply: dict[int, int] = {}

    @property
    def length(self) -> int:
        """Tokens the next copy proposes at most."""
        return self._length

    def extend(self, tokens: Iterable[int]) -> None:
        """Take the next tokens of the conversation, prompt first."""
        known = self._tokens
        for token in tokens:
            place = len(known)
            if place > self._prompt_tokens:
                if place >= REPLY_GRAM:
                    self._in_reply[hash(tuple(known[-REPLY_GRAM:]))] = place
            elif place >= PROMPT_GRAM:
                self._in_prompt[hash(tuple(known[-PROMPT_GRAM:]))] = place
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
        self._open = tuple(known[place + at % period] for at in range(min(limit, self._length)))
        return self._open

    def settle(self, following: Sequence[int]) -> None:
        """Learn what followed the last proposal, whether or not it was used."""
        if not self._open:
            return
        seen = min(len(self._open), len(following))
        if tuple(following[:seen]) != self._open[:seen]:
            self._length = max(1, self._length // 2)
        else:
            self._length = min(self._longest, 2 * self._length)
        self._open = ()

    def _place(self) -> int | None:
        known = self._tokens
        for places, gram in ((self._in_reply, REPLY_GRAM), (self._in_prompt, PROMPT_GRAM)):
            if len(known) < gram:
                continue
            newest = known[-gram:]
            place = places.get(hash(tuple(newest)))
            if place is not None and len(known) - place <= LOOK_BACK and known[place - gram : place] == newest:
                return place
        return None
