"""What a drafter's confidence is worth: its chance of every draft that was looked at, and whether the draft held. Knows no drafter."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any

from lockstep.draft.stream import Ask, Drafter, Kept, Proposal

BINS = 10


@dataclass(slots=True)
class Confidence:
    """Chances of the drafts that held and of those that did not. Drafts behind the first that did not hold were never looked at."""

    held: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)

    def watch(self, drafter: Drafter) -> None:
        """Note from now on what `drafter`, which has one stream at a time, proposes and what is kept of it."""
        propose, absorb = drafter.propose, drafter.absorb
        chances: tuple[float, ...] = ()

        def proposing(asks: list[Ask]) -> list[Proposal]:
            nonlocal chances
            found = propose(asks)
            chances = found[0].chances
            return found

        def absorbing(kept: list[Kept]) -> None:
            nonlocal chances
            accepted = len(kept[0].following) - 1
            self.held += chances[:accepted]
            self.failed += chances[accepted : accepted + 1]
            chances = ()
            absorb(kept)

        drafter.propose, drafter.absorb = proposing, absorbing

    def taken(self) -> dict[str, Any]:
        """The figures so far; counting begins anew."""
        figures = self.figures()
        self.held.clear()
        self.failed.clear()
        return figures

    def figures(self) -> dict[str, Any]:
        """`bins`: [drafts, held] per tenth of confidence; `auc`: how often a draft that held had the higher chance of two; the
        threshold that parts them best, with the share of held drafts at or over it and of failed ones under it."""
        held, failed = sorted(self.held), sorted(self.failed)
        if not held or not failed:
            return {"bins": self.bins()}
        wins = sum(bisect_left(failed, chance) + bisect_right(failed, chance) for chance in held) / 2

        def shares(edge: float) -> tuple[float, float]:
            return 1 - bisect_left(held, edge) / len(held), bisect_left(failed, edge) / len(failed)

        threshold = max(sorted(set(held)), key=lambda edge: sum(shares(edge)))
        kept, dropped = shares(threshold)
        return {
            "bins": self.bins(),
            "auc": round(wins / len(held) / len(failed), 3),
            "threshold": round(threshold, 3),
            "held_over": round(kept, 3),
            "failed_under": round(dropped, 3),
        }

    def bins(self) -> list[list[int]]:
        """[drafts, held] per tenth of confidence."""
        counts = [[0, 0] for _ in range(BINS)]
        for chances, is_held in ((self.held, 1), (self.failed, 0)):
            for chance in chances:
                place = counts[min(BINS - 1, int(chance * BINS))]
                place[0] += 1
                place[1] += is_held
        return counts
