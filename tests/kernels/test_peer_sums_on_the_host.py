"""Sums from card to card (patch 0005) without a card: two threads, each with a copy of the translated kernel, over memory of the host."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.host_cuda import OWN, standing_in
from fixtures.patched import Store, export, modules
from fixtures.peer_host import CPU, PATIENCE_S, Event, Library, Regions, on_both
from lockstep.run.exchange import in_rank_order

pytestmark = pytest.mark.compiler
SUMS = 2000


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """`run.peer` of the patched engine, whose kernels run on the host."""
    folder = tmp_path_factory.mktemp("peer")
    (folder / "kernels").mkdir()
    with standing_in(folder / "kernels", "sm_120"), modules(export(folder / "engine"), "peer") as found:
        yield found["peer"]


def ends(peer: ModuleType, regions: Regions, patience_s: float = PATIENCE_S) -> list[Any]:
    """Both ranks' ends."""
    own = [regions(CPU) for _ in range(2)]
    return [peer.PeerSum(CPU, rank, own[rank], own[1 - rank], patience_s) for rank in range(2)]


def regions_of(peer: ModuleType, refuses: int = -1) -> Regions:
    return Regions(kernel(peer).REGION_BYTES, refuses)


def kernel(peer: ModuleType) -> Any:
    """The module of the kernel."""
    return sys.modules[peer.PeerSum.__module__]


@contextmanager
def its_own_copy() -> Iterator[None]:
    """What traps launches nothing any more, so nobody else launches from the same."""
    OWN.copy = 2
    try:
        yield
    finally:
        OWN.copy = 0


def drawn(most: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Partials of both ranks, most of them small, of both types and of every size that is taken."""
    choose, generator = random.Random(5), torch.Generator().manual_seed(5)
    found = []
    for turn in range(count):
        kind = (torch.bfloat16, torch.float32)[choose.random() < 0.3]
        size = 16 * choose.randint(1, 2 ** choose.randint(0, 12)) if turn % 50 else most
        found.append(tuple(torch.randn(1, size // kind.itemsize, generator=generator).to(kind) for _ in range(2)))
    return found


def test_thousands_of_sums_are_those_in_rank_order_at_any_pace(peer: ModuleType):
    two, partials = ends(peer, regions_of(peer)), drawn(kernel(peer).MOST_BYTES, SUMS)

    def work(rank: int) -> list[Tensor]:
        choose, found = random.Random(rank), []
        for pair in partials:
            if choose.random() < 0.02:
                time.sleep(choose.random() / 200)
            assert two[rank].takes(pair[rank])
            found.append(two[rank](pair[rank]))
        assert not two[rank].gave_up()
        return found

    for turn, (found, pair) in enumerate(zip(zip(*on_both(work), strict=True), partials, strict=True)):
        wanted = in_rank_order(pair)
        assert all(one.dtype is wanted.dtype and torch.equal(one, wanted) for one in found), f"sum {turn} of {wanted.numel()} values"


def test_rounds_pass_the_end_of_their_count(peer: ModuleType):
    regions, first = regions_of(peer), -3
    two, partials = ends(peer, regions), drawn(kernel(peer).MOST_BYTES, 12)
    for one in two:
        one._rounds[: kernel(peer).BLOCKS] = first
    for one in regions.made.values():
        one.memory[: kernel(peer).BLOCKS * kernel(peer).LINE].view(torch.int32)[:] = first
    for found in on_both(lambda rank: [two[rank](pair[rank]) for pair in partials]):
        assert all(torch.equal(one, in_rank_order(pair)) for one, pair in zip(found, partials, strict=True))
    assert int(two[0]._rounds[0]) == first + len(partials)


def test_a_lonely_rank_notes_it_while_it_is_tried_and_ends_its_context_while_it_serves(peer: ModuleType):
    tried, serving = (ends(peer, regions_of(peer), 0.05)[0] for _ in range(2))
    serving.serve(0.2)
    with its_own_copy():
        for _ in range(3):
            tried(torch.ones(1, 64))
        assert tried.gave_up()
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="peer_sum ended in a trap"):
            serving(torch.ones(1, 64))
        assert 0.2 <= time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("", "the peer exchange is faster: "),
        ("bits", r"rank 1: sum 0 of 8192 bytes: 1 of 4096 values are not the library's"),
        ("slow", "the peer exchange is slower: "),
        ("opens", "rank 1: no sums through memory of rank 0: CUDA answered CUDA_ERROR_INVALID_DEVICE"),
    ],
)
def test_the_peer_exchange_serves_both_ranks_or_none(peer: ModuleType, fault: str, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peer, "Region", regions_of(peer, 1 if fault == "opens" else -1))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(peer, "TIMED", 5)
    store = Store()

    def work(rank: int) -> tuple[Any, str]:
        def tell(name: str, own: bytes) -> list[bytes]:
            store.set(f"{name} {rank}", "-" + own.hex())
            return [bytes.fromhex(store.get(f"{name} {one}").decode()[1:]) for one in range(2)]

        library = Library(rank, tell, wrong=fault == "bits" and rank == 1, slow_s=0.0 if fault == "slow" else 0.05)
        return peer.choose(library, CPU, tell, PATIENCE_S)

    for found, why in on_both(work):
        assert why.startswith(said)
        assert (found is None) == bool(fault)
