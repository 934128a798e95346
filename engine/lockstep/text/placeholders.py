"""Pictures and clips in a conversation: a mark in its text until it is rendered, then control tokens, then positions. Knows no pixels.

Source: the processor published with glm5_next checkpoints. A clip is a row of pictures, one for each pair of frames, each with its moment.
"""

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

IMAGE, VIDEO = "<|image|>", "<|video|>"
_PICTURE, _CLIP = ("<|begin_of_image|>", "<|end_of_image|>"), ("<|begin_of_video|>", "<|end_of_video|>")
# By the names config.json gives to their ids.
SPELLINGS = {
    "image": IMAGE, "video": VIDEO, "image_start": _PICTURE[0], "image_end": _PICTURE[1], "video_start": _CLIP[0], "video_end": _CLIP[1],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture, or a clip whose pairs of frames stand at `seconds`. Each picture and each pair has `tokens` tokens."""

    tokens: int
    seconds: tuple[float, ...] = ()

    @property
    def segments(self) -> int:
        """Pictures in it."""
        return len(self.seconds) or 1


@dataclass(frozen=True, slots=True)
class Place:
    """Segment `segment` of the `index`-th picture or clip of the request begins at token `start` of the prompt."""

    index: int
    segment: int
    start: int


class Placeholders:
    """What one request shows. Marks cannot be guessed, so text that looks like one, or like a control token, stays text."""

    def __init__(self, shown: Sequence[Shown]) -> None:
        self._shown, self._nonce = shown, secrets.token_hex(16)
        self._order: list[int] = []

    def mark(self, index: int) -> str:
        """Text that stands for the `index`-th of them until the conversation is rendered."""
        return f"{self._nonce}.{index}."

    def expand(self, rendered: str) -> str:
        """Rendered text with control tokens for marks, wherever the template put them."""
        self._order = []

        def spelled(found: re.Match[str]) -> str:
            self._order.append(int(found[1]))
            return _spelled(self._shown[self._order[-1]])

        return re.sub(rf"{self._nonce}\.(\d+)\.", spelled, rendered)

    def places(self, starts: Iterable[tuple[str, int]]) -> tuple[Place, ...]:
        """Where the pictures begin, out of all control tokens of the prompt and their positions."""
        images = [at for spelling, at in starts if spelling == IMAGE]
        places, taken = [], 0
        for index in self._order:
            for segment in range(self._shown[index].segments):
                places.append(Place(index, segment, images[taken]))
                taken += self._shown[index].tokens
        return tuple(places)


def _spelled(shown: Shown) -> str:
    picture = _PICTURE[0] + IMAGE * shown.tokens + _PICTURE[1]
    if not shown.seconds:
        return picture
    return _CLIP[0] + "".join(f"{picture}{second:.1f} seconds" for second in shown.seconds) + _CLIP[1]
