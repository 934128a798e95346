"""How a drafter's confidence is told apart by what became of its drafts."""

from __future__ import annotations

import pytest
import torch
from embedded.make.confidence import Confidence

from lockstep.draft.stream import Ask, Drafter, Kept, Proposal


class Fixed(Drafter):
    def propose(self, asks: list[Ask]) -> list[Proposal]:
        return [Proposal((1, 2, 3), (0.95, 0.55, 0.05))]


def kept(accepted: int) -> list[Kept]:
    return [Kept(None, 0, (9,) * (accepted + 1), torch.empty(0))]  # type: ignore[arg-type]


def test_confidence_counts_what_was_looked_at_and_what_held() -> None:
    confidence, drafter = Confidence(), Fixed()
    confidence.watch(drafter)
    drafter.absorb(kept(63))  # a slice of the prompt, which no draft was made for
    assert (confidence.held, confidence.failed) == ([], [])
    for accepted in (1, 3, 1, 0):
        drafter.propose([])
        drafter.absorb(kept(accepted))
    assert (confidence.held, confidence.failed) == ([0.95, 0.95, 0.55, 0.05, 0.95], [0.55, 0.55, 0.95])
    assert confidence.bins()[9] == [4, 3]
    assert confidence.bins()[5] == [3, 1]
    assert confidence.bins()[0] == [1, 1]
    assert confidence.taken()["bins"] == [[1, 1], *[[0, 0]] * 4, [3, 1], *[[0, 0]] * 3, [4, 3]]
    assert confidence.figures() == {"bins": [[0, 0]] * 10}


@pytest.mark.parametrize(
    ("held", "failed", "auc", "threshold", "shares"),
    [
        ([0.8, 0.9], [0.1, 0.2, 0.3], 1.0, 0.8, (1.0, 1.0)),
        ([0.5], [0.5, 0.5], 0.5, 0.5, (1.0, 0.0)),
        ([0.2, 0.9], [0.5], 0.5, 0.9, (0.5, 1.0)),
        ([0.1], [0.9], 0.0, 0.1, (1.0, 0.0)),
    ],
)
def test_how_well_confidence_parts_held_from_failed(
    held: list[float], failed: list[float], auc: float, threshold: float, shares: tuple[float, float]
) -> None:
    figures = Confidence(held, failed).figures()
    assert (figures["auc"], figures["threshold"]) == (auc, threshold)
    assert (figures["held_over"], figures["failed_under"]) == shares
