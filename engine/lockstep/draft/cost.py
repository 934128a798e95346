"""What rows cost: milliseconds of a step by its number of rows, measured at load and followed while serving. No tensor.

Timings steer how deep to draft and nothing else.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

FOLLOW = 0.1
OUTLIER = 2.0


class RowCosts:
    """Milliseconds per row count. A count nobody has seen is read off the line between its neighbours.

    `agree` turns this rank's seconds into those every rank goes by.
    """

    def __init__(self, agree: Callable[[float], float] = float) -> None:
        self._agree = agree
        self._ms: dict[int, float] = {}
        self._drafting_ms = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """A step over `rows` rows took so long."""
        self._ms[rows] = _followed(self._ms.get(rows), 1000 * self._agree(seconds))

    def observe_drafting(self, seconds: float) -> None:
        """A round of proposals took so long."""
        self._drafting_ms = _followed(self._drafting_ms or None, 1000 * self._agree(seconds))

    def step_ms(self, rows: int) -> float:
        """Milliseconds of a step over `rows` rows; 1 while nothing is known."""
        known = self._ms
        if rows in known or not known:
            return known.get(rows, 1.0)
        below = max((count for count in known if count < rows), default=None)
        above = min((count for count in known if count > rows), default=None)
        if below is None or above is None:
            return known[below if above is None else above]  # pyright: ignore[reportArgumentType]
        return known[below] + (known[above] - known[below]) * (rows - below) / (above - below)

    def depths(self, chances: Sequence[Sequence[float]], other_rows: int) -> list[int]:
        """Drafts per stream with the most expected tokens a millisecond, beside `other_rows` rows of other streams.

        Drafts enter by falling probability of being reached and right, which keeps those of a stream in order.
        """
        reached = ((-product, stream) for stream, row in enumerate(chances) for product in accumulate(row, mul))
        ranked = sorted(reached, key=lambda pair: pair[0])
        rows, tokens = len(chances) + other_rows, float(len(chances))
        best, taken = tokens / self._round_ms(rows), 0
        for count, (product, _) in enumerate(ranked, 1):
            tokens -= product
            rate = tokens / self._round_ms(rows + count)
            if rate > best:
                best, taken = rate, count
        chosen = [stream for _, stream in ranked[:taken]]
        return [chosen.count(stream) for stream in range(len(chances))]

    def _round_ms(self, rows: int) -> float:
        return self.step_ms(rows) + self._drafting_ms


def _followed(known: float | None, ms: float) -> float:
    """Running mean in which one slow step, a paused process say, counts as twice the usual."""
    return ms if known is None else known + FOLLOW * (min(ms, OUTLIER * known) - known)
