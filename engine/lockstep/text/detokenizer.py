"""Ids to text, as they come: never half a character, never a replacement character the model did not write."""

from __future__ import annotations

import codecs

from lockstep.text.tokenizer import TextTokenizer


class Detokenizer:
    """The text of one stream. Bytes of an unfinished character wait; what is still unfinished at the end is dropped."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))
