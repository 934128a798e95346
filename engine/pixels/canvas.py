"""Sizes and moments: which canvas a picture of some size gets, and which frames of a clip are looked at. Knows numbers, no pixels.

Source: the published processor of glm5_next checkpoints. A canvas has sides of whole blocks; content keeps its aspect ratio, lies at the
top left and the rest is black.
"""

import math
from dataclasses import dataclass

PAIR = 2


@dataclass(frozen=True, slots=True)
class Canvas:
    """Pixels: sides of the canvas, and of the content in it."""

    height: int
    width: int
    content_height: int
    content_width: int

    def tokens(self, block: int) -> int:
        """Tokens of one picture or pair of frames."""
        return self.height * self.width // block**2


def canvas(height: int, width: int, block: int, least: int, most: int, frames: int = PAIR) -> Canvas:
    """Canvas for `height` x `width` pixels; all pairs of `frames` frames together take about `least` tokens or more, at most `most`.

    A still picture counts as one pair. Raises ValueError if `most` is less than a token a pair.
    """
    pairs = max(1, round(frames / PAIR))
    high, wide = _up(height, block), _up(width, block)
    if pairs * high * wide < least * block**2:
        scale = math.sqrt(least * PAIR * block**2 / (frames * height * width))
        high, wide = _up(math.ceil(height * scale), block), _up(math.ceil(width * scale), block)
    if pairs * high * wide > most * block**2:
        high, wide = _largest_within(height, width, block, most // pairs)
    scale = min(high / height, wide / width)
    if frames * height * width >= least * PAIR * block**2:
        scale = min(1.0, scale)
    content = (max(1, min(side, math.floor(length * scale))) for side, length in ((high, height), (wide, width)))
    return Canvas(high, wide, *content)


def _up(length: int, block: int) -> int:
    return -(-length // block) * block


def _largest_within(height: int, width: int, block: int, tokens: int) -> tuple[int, int]:
    """Sides of the canvas around the tallest content of this aspect ratio, no taller than `height`, that has `tokens` blocks or fewer."""
    if tokens < 1:
        raise ValueError(f"{tokens} tokens for a pair of frames; needed: at least one")
    low, high, best = 1, height, (block, block)
    while low <= high:
        tall = (low + high) // 2
        sides = _up(tall, block), _up(max(1, width * tall // height), block)
        if sides[0] * sides[1] <= tokens * block**2:
            best, low = sides, tall + 1
        else:
            high = tall - 1
    return best


def sampled_frames(total: int, rate: float, wanted_rate: float, most: int) -> list[int]:
    """Indices of the frames to look at, ascending, an even number: of `total` frames at `rate` a second, about `wanted_rate` a second.

    The published rule gives none for a clip shorter than one sampling interval; here it gives its first frame.
    """
    duration = total / rate
    wanted = max(1, min(int(duration * wanted_rate), most))
    taken = _even(0, total - 1, wanted) if total < wanted else _walk(total, rate, wanted_rate, int(duration))
    if len(taken) < wanted:
        taken = _even(taken[0], taken[-1], wanted)
    elif len(taken) > wanted:
        taken = _even(0, total - 1, wanted)
    taken = list(dict.fromkeys(taken))
    return taken + taken[-1:] * (len(taken) % PAIR)


def _walk(total: int, rate: float, wanted_rate: float, seconds: int) -> list[int]:
    """The first frame at or behind each mark of `wanted_rate` marks a second, until the next mark reaches `seconds`."""
    taken, mark, one, step = [], 0.0, 1 / rate, 1 / wanted_rate
    for index in range(total):
        if index * one >= mark:
            taken.append(index)
            mark += step
            if mark >= seconds:
                break
    return taken


def _even(first: int, last: int, count: int) -> list[int]:
    """`count` whole numbers from `first` to `last`, evenly spread and rounded down."""
    if count == 1:
        return [first]
    step = (last - first) / (count - 1)
    return [int(index * step + first) for index in range(count - 1)] + [last]
