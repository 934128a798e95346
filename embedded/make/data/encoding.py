"""From a conversation to token ids, loss marks and picture places. The only module that holds a tokenizer; it trains none."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from embedded.make.data.conversation import Sample, Segment, ToolFrame, render, render_prompt
from embedded.make.data.template import tool_frame
from tokenizers import Tokenizer

_CACHED_CHARACTERS, _CACHED_TEXTS = 48, 200_000


@dataclass(slots=True)
class Document:
    """`ids` uint16 [n]; `marks` uint8 [n], GIVEN or REPLY, the first one 0; `pictures` holds (position of the first of its 16
    placeholder tokens, one or two frames uint8 [frames, 112, 112]) in order."""

    ids: np.ndarray
    marks: np.ndarray
    pictures: list[tuple[int, np.ndarray]]


@dataclass(slots=True)
class Encoder:
    """Encodes samples with the checkpoint's own tokenizer and the wording of its own template."""

    tokenizer: Tokenizer
    frame: ToolFrame
    _texts: dict[str, list[int]] = field(default_factory=dict)
    _specials: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Path) -> Encoder:
        """Reads `tokenizer.json` and `chat_template.jinja` of a checkpoint folder."""
        return cls(Tokenizer.from_file(str(checkpoint / "tokenizer.json")), tool_frame((checkpoint / "chat_template.jinja").read_text()))

    def special(self, token: str) -> int:
        """Id of a special token. Raises KeyError for a name the tokenizer does not have as one token."""
        found = self._specials.get(token)
        if found is None:
            found = self.tokenizer.token_to_id(token)
            if found is None:
                raise KeyError(f"the tokenizer has no token {token}; it needs every special token of the prompt layout")
            self._specials[token] = found
        return found

    def text(self, text: str) -> list[int]:
        """Ids of plain text."""
        if len(text) > _CACHED_CHARACTERS:
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) >= _CACHED_TEXTS:
                self._texts.clear()
            found = self._texts[text] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def document(self, sample: Sample) -> Document:
        """Encodes one conversation, its stop token included."""
        return self._encode(render(sample, self.frame))

    def prompt(self, sample: Sample) -> Document:
        """Encodes a conversation that ends before the assistant's reply, generation prompt included."""
        return self._encode(render_prompt(sample, self.frame))

    def _encode(self, segments: list[Segment]) -> Document:
        ids: list[int] = []
        marks = bytearray()
        pictures: list[tuple[int, np.ndarray]] = []
        for segment in segments:
            if segment.media is not None:
                media, index = segment.media
                pictures.append((len(ids), media.frames[list(dict.fromkeys(media.pairs[index]))]))
            pieces = [self.special(segment.text)] if segment.special else self.text(segment.text)
            ids += pieces
            marks += bytes((segment.mark,)) * len(pieces)
        marks[0] = 0
        return Document(np.array(ids, np.uint16), np.frombuffer(bytes(marks), np.uint8), pictures)
