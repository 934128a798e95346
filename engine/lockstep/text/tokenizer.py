"""The checkpoint's `tokenizer.json`: plain text to ids, ids to bytes. Knows nothing of templates or replies.

Special ids never come out of plain text: the encoder used for it holds no added tokens, so their spellings are cut like any
other word. `encode_template` is the one way to them; it takes text in which the template's own words are told from a client's.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Encoder

from lockstep.text.errors import CheckpointTextError, TextError, TooManyTokens

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"

# Texts of fewer characters than this for each token of the limit are encoded without counting first.
LIKELY_CHARACTERS = 4
_SLICE_CHARACTERS = 1 << 16
_CUT_TOKENS = 16


class Tokenizer:
    """Byte-level BPE with added tokens. `size` is one past the highest id that has a spelling."""

    def __init__(self, definition: dict[str, Any], where: str = "tokenizer.json") -> None:
        """Raise CheckpointTextError if this is no byte-level BPE or a think tag is missing."""
        added = {entry["content"]: int(entry["id"]) for entry in definition.get("added_tokens", [])}
        _require_byte_level(definition, where)
        self._plain = Encoder.from_str(json.dumps({**definition, "added_tokens": [], "post_processor": None}))
        self.added = added
        self._hidden = frozenset(int(entry["id"]) for entry in definition.get("added_tokens", []) if entry.get("special"))
        missing = [tag for tag in (THINK_OPEN, THINK_CLOSE) if tag not in added]
        if missing:
            raise CheckpointTextError(
                f"{where}: no added token {missing[0]}; needed: the tags {THINK_OPEN} and {THINK_CLOSE} as single tokens"
            )
        self.think_open, self.think_close = added[THINK_OPEN], added[THINK_CLOSE]
        self._bytes = _token_bytes(self._plain.get_vocab(with_added_tokens=False), added)
        self.size = len(self._bytes)
        self.openers = frozenset(spelling[0] for spelling in added)
        self._splitter = re.compile("(" + "|".join(re.escape(word) for word in sorted(added, key=len, reverse=True)) + ")")

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Read `tokenizer.json` of a checkpoint folder. Raises CheckpointTextError naming the file."""
        path = directory / "tokenizer.json"
        try:
            return cls(json.loads(path.read_text(encoding="utf-8")), str(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointTextError(f"{path}: not readable as a tokenizer ({error}); download the file again") from None

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Ids of plain text, no special id among them. Raises as `encode_many`."""
        return self.encode_many([text], limit)[0]

    def encode_many(self, texts: Sequence[str], limit: int | None = None) -> list[list[int]]:
        """Ids of each text on its own; other threads run meanwhile.

        Raises TextError for text that is no Unicode, and TooManyTokens for texts that are far past `limit` tokens together. A text
        only a little past it is encoded: the caller knows what else shares the limit.
        """
        if limit is not None:
            self.refuse_past(texts, limit)
        return [encoding.ids for encoding in self._encodings(texts)]

    def refuse_past(self, texts: Sequence[str], limit: int) -> None:
        """Raise TooManyTokens for texts far past `limit` tokens together, as `encode_many` does.

        Counted in slices, of which a cut adds few tokens, if any: an encoding takes hundreds of bytes a token.
        """
        if sum(map(len, texts)) <= LIKELY_CHARACTERS * limit:
            return
        count = 0
        for text in texts:
            for start in range(0, len(text), _SLICE_CHARACTERS):
                count += max(len(self._encodings([text[start : start + _SLICE_CHARACTERS]])[0]) - _CUT_TOKENS, 0)
                if count > limit:
                    raise TooManyTokens(count, limit)

    def _encodings(self, texts: Sequence[str]) -> list[Encoding]:
        try:
            return self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise TextError(
                "the text holds a lone surrogate (half of a UTF-16 pair); needed: Unicode text. Send the whole character"
            ) from None

    def split(self, text: str) -> list[str]:
        """Cut at the spellings of added tokens, longest first: plain pieces at even places, spellings at odd ones."""
        return self._splitter.split(text)

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes a token stands for, added tokens by their spelling."""
        return self._bytes[token] if 0 <= token < self.size else b""

    def is_hidden(self, token: int) -> bool:
        """True for control tokens, which are no part of a reply's text."""
        return token in self._hidden or not 0 <= token < self.size

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of ids, control tokens by their spelling; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", errors="replace")


def _require_byte_level(definition: dict[str, Any], where: str) -> None:
    model, decoder = definition.get("model") or {}, definition.get("decoder") or {}
    kinds = {decoder.get("type"), *(part.get("type") for part in decoder.get("decoders") or [])}
    if model.get("type") != "BPE" or "ByteLevel" not in kinds:
        raise CheckpointTextError(
            f"{where}: model {model.get('type')} with decoder {decoder.get('type')}; needed: BPE with a ByteLevel decoder"
        )


def _token_bytes(vocabulary: dict[str, int], added: dict[str, int]) -> list[bytes]:
    """Bytes by id. Byte-level BPE writes every byte as one printable character; ids without a spelling stand for nothing."""
    alphabet = _byte_alphabet()
    table = [b""] * (1 + max([*vocabulary.values(), *added.values()]))
    for spelling, token in vocabulary.items():
        table[token] = bytes(alphabet[character] for character in spelling)
    for spelling, token in added.items():
        table[token] = spelling.encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """The byte of each character of byte-level BPE: printable Latin-1 stands for itself, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


class ByteText:
    """Bytes to text as they come: a character is given once it is whole, so the joined text does not depend on the cuts."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """Text that is complete now. Bytes that can never become a character give U+FFFD, half characters nothing."""
        return self._decoder.decode(data)
