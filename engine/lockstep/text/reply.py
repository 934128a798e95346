"""A reply's token ids, as they come, into visible text and reasoning. Knows no HTTP and no engine.

The result does not depend on how the ids were cut into rounds. Reasoning ends at the close token's id, never at its spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.text.stops import StopScanner
from lockstep.text.tokenizer import ByteText, Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that became complete. Reasoning always precedes content."""

    reasoning: str = ""
    content: str = ""

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content)


class ReplyText:
    """Feed ids, read text. Stop strings match in visible content only; `stopped` names the one that ended the reply.

    `split_reasoning` off (raw completions) shows think tags as text. `tokens` holds the ids that are part of the reply: those up
    to and including the one that completed a stop.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), in_reasoning: bool = False, split_reasoning: bool = True) -> None:
        self._tokenizer = tokenizer
        self._stops = StopScanner(stops)
        self._split = split_reasoning
        self._thinking = in_reasoning
        self._spoken = False
        self._reasoning_text, self._content_text = ByteText(), ByteText()
        self.tokens: list[int] = []
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._stops.matched

    def feed(self, tokens: Iterable[int]) -> Delta:
        """Text completed by these ids. Ids behind a stop are left out."""
        reasoning, content = [], []
        for token in tokens:
            if self.stopped is not None:
                break
            self.tokens.append(token)
            self.reasoning_tokens += self._thinking
            if self._split and self._is_think_tag(token):
                continue
            if self._tokenizer.is_hidden(token):
                continue
            data = self._tokenizer.token_bytes(token)
            if self._thinking:
                reasoning.append(self._reasoning_text.feed(data))
            else:
                self._spoken = True
                content.append(self._stops.feed(self._content_text.feed(data)))
        return Delta("".join(reasoning), "".join(content))

    def finish(self) -> Delta:
        """What was held back as a possible stop. Bytes of an incomplete character are dropped."""
        return Delta("", self._stops.flush())

    def _is_think_tag(self, token: int) -> bool:
        """Think tags are never text. Opening one counts only before the answer began, so an answer cannot turn into thought."""
        if token == self._tokenizer.think_close:
            self._thinking = False
            return True
        if token == self._tokenizer.think_open:
            self._thinking = self._thinking or not self._spoken
            return True
        return False
