"""What one rank keeps and has to share: states that are used by all ranks or none, rows of pictures that are rank 0's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.cache import Sequence
from lockstep.cache.spill import SpillFolder
from lockstep.config.share import Share
from lockstep.core.plan import Restore
from lockstep.core.types import EngineRequest, Picture, Sampling
from lockstep.draft.stream import Stream
from lockstep.run.kept import KeptStates
from lockstep.run.pictures import PictureRows


class OtherRank:
    """Exchange of one of two ranks. The other's part of every sum is `others`."""

    captured = False

    def __init__(self, rank: int, others: Tensor) -> None:
        self.share, self.others = Share(rank, 2), others

    def add(self, partial: Tensor) -> Tensor:
        return partial + self.others


class Memory:
    """Notes what is put back."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.restored: list[str] = []

    def restore_pages(self, pages: list[int], saved: dict[str, Tensor]) -> None:
        self.restored.append("pages")

    def restore_state(self, stream: Stream, saved: dict[str, Tensor]) -> None:
        self.restored.append("state")


@pytest.mark.parametrize("other_has_it", [True, False])
def test_a_state_of_which_another_rank_lacks_its_part_is_used_by_none(tmp_path: Path, other_has_it: bool):
    spill, memory = SpillFolder(tmp_path, 0), Memory()
    spill.write(7, {"taps": torch.zeros(0, 64, 4)})
    exchange: Any = OtherRank(0, torch.tensor([[float(other_has_it)]]))
    kept = KeptStates(memory, exchange, spill)  # pyright: ignore[reportArgumentType]
    stream = Stream(EngineRequest("a", tuple(range(70)), Sampling(), 1), Sequence(0, [0, 1]))
    found = kept.begin(stream, Restore(7, 64))
    spill.close()
    assert (found is not None) == other_has_it
    assert memory.restored == (["pages", "state"] if other_has_it else [])
    assert stream.sequence.length == (64 if other_has_it else 0)


def test_every_rank_takes_rank_0s_rows_of_a_picture():
    rows = torch.randn(4, 8)
    model: Any = SimpleNamespace(
        exchange=OtherRank(1, rows), config=SimpleNamespace(hidden_size=8), dtype=torch.float32, device=torch.device("cpu")
    )
    picture = Picture(3, 4, 1, 1, 1, hashlib.sha256(b"p").hexdigest(), b"")
    request = EngineRequest("a", tuple(range(20)), Sampling(), 1, pictures=(picture,))
    ((at, found),) = PictureRows(None, model).within(request, 0, 20)
    assert at == 3
    assert torch.equal(found, rows)
