"""Logarithms of probabilities in OpenAI's two forms. Knows tokens and their spelling, no endpoint."""

from collections.abc import Sequence
from typing import Any

from lockstep.core.types import TokenLogprob
from lockstep.text.tokenizer import ByteText, Tokenizer

Rows = Sequence[tuple[int, TokenLogprob | None]]


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; of one that holds no whole characters its bytes, as in `bytes:\\xe2\\x98`."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokenizer: Tokenizer, rows: Rows) -> dict[str, Any] | None:
    """`choices[].logprobs` of chat: every token of the reply, reasoning and control tokens too. None for no rows."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": spelled(tokenizer, token), "logprob": logprob, "bytes": list(tokenizer.token_bytes(token))}

    told = [
        entry(token, row.logprob) | {"top_logprobs": [entry(other, logprob) for other, logprob in row.top]}
        for token, row in rows
        if row is not None
    ]
    return {"content": told, "refusal": None} if told else None


class TextLogprobs:
    """`choices[].logprobs` of completions, piece by piece; offsets count the characters of the whole text from its first piece on.

    Control tokens among the first `echoed` ones are part of the text, later ones are not."""

    def __init__(self, tokenizer: Tokenizer, echoed: int = 0) -> None:
        self._tokenizer, self._text, self._offset, self._echoed = tokenizer, ByteText(), 0, echoed

    def tell(self, rows: Rows) -> dict[str, Any] | None:
        """The next rows; the first token of a prompt has no logarithm. None for no rows."""
        told: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, row in rows:
            told["tokens"].append(word := spelled(self._tokenizer, token))
            told["token_logprobs"].append(row.logprob if row else None)
            # The token itself is among them, likely or not.
            ranked = {spelled(self._tokenizer, other): value for other, value in row.top} if row else {}
            told["top_logprobs"].append({word: row.logprob} | ranked if row else None)
            told["text_offset"].append(self._offset)
            self._echoed -= 1
            if self._echoed >= 0 or not self._tokenizer.is_hidden(token):
                self._offset += len(self._text.feed(self._tokenizer.token_bytes(token)))
        return told if rows else None
