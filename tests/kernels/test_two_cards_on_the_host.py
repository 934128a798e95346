"""What only two cards run, without a card: ranks as threads, each with its share of a small model on the translated kernels, and graphs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.cuda_bench import Bench
from fixtures.cuda_model import STEPS, Memory, slices_and_steps_change_no_bit, told
from fixtures.host_cuda import OWN
from fixtures.host_graph import HostGraph
from fixtures.peer_host import on_both
from fixtures.rank_threads import thread_exchanges
from fixtures.two_cards import Cards, kernel, two_cards
from lockstep.run.exchange import in_rank_order

pytestmark = pytest.mark.compiler
BENCH = Bench("cpu", captures=True)
LIMIT_S = 100.0
ROUNDS = ([[5, 6], [9]], [[2, 3], [4]])


@pytest.fixture(scope="module")
def plain() -> list[Memory]:
    """Each rank's share through plain torch, prompts read."""
    exchanges = thread_exchanges(2)
    return on_both(lambda rank: Memory(BENCH, "fp8", exchanges[rank]).prompt(4096), LIMIT_S)


@pytest.fixture(scope="module")
def cards(plain: list[Memory], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cards]:
    """After `plain`: what is made from here on counts as on a card."""
    with two_cards(tmp_path_factory.mktemp("cards")) as found:
        yield found


@pytest.fixture(scope="module")
def chosen(cards: Cards) -> list[Any]:
    """The exchange between the cards, which a start chooses where all is well."""
    return cards.chosen()


def rounds_of(exchanges: list[Any]) -> list[tuple[Memory, list[Tensor]]]:
    """Each rank's memory, and rows and logits of two steps of one size from nothing."""

    def work(rank: int) -> tuple[Memory, list[Tensor]]:
        memory = Memory(BENCH, "fp8", exchanges[rank]).begin()
        return memory, [rows for ids in ROUNDS for rows in memory.step(ids, [1, 1])]

    return on_both(work, LIMIT_S)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def test_ranks_have_the_same_bits_in_slices_and_steps_alone_and_together_as_through_the_library(
    cards: Cards, chosen: list[Any], plain: list[Memory]
):
    portable = cards.portable()

    def through_the_library(rank: int) -> tuple[list[Tensor], list[str]]:
        memory = Memory(BENCH, "fp8", portable[rank]).prompt(4096)
        rows, hashes = [memory.hidden], memory.hashes()
        for number, (counts, keep) in enumerate(STEPS):
            rows += memory.step([told(number, count, slot) for slot, count in enumerate(counts)], list(keep))
            hashes += memory.hashes()
        return rows, hashes

    assert all(isinstance(one, cards.exchange.PeerExchange) for one in chosen)
    found = on_both(lambda rank: slices_and_steps_change_no_bit(BENCH, "fp8", plain[rank], chosen[rank]), LIMIT_S)
    wanted = on_both(through_the_library, LIMIT_S)
    assert same(found[0][0], found[1][0])
    for (rows, hashes), (other_rows, other_hashes) in zip(found, wanted, strict=True):
        assert same(rows, other_rows)
        assert hashes == other_hashes


@pytest.mark.parametrize("refuses", [-1, 0, 1], ids=["both can", "rank 0 cannot", "rank 1 cannot"])
def test_steps_become_graphs_on_both_ranks_or_on_none(cards: Cards, chosen: list[Any], refuses: int, monkeypatch: pytest.MonkeyPatch):
    plain_graph, made = torch.cuda.graph, list[HostGraph]()

    def graph(one: Any, *given: Any, **more: Any) -> Any:
        if OWN.copy == refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        made.append(one)
        return plain_graph(one, *given, **more)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    found, wanted = rounds_of(chosen), rounds_of(cards.portable())
    for memory, rows in found:
        assert memory.model.rounds is not None
        assert memory.model.rounds.graphs == (refuses < 0)
        assert same(rows, wanted[0][1])
    assert [one.replays for one in made] == ([2, 2] if refuses < 0 else [0])


def test_a_sum_too_large_for_the_cards_goes_through_the_library_and_into_no_graph(cards: Cards, chosen: list[Any]):
    most = kernel(cards).MOST_BYTES
    fits, large = ([torch.randn(1, (most + more) // 2).bfloat16() for _ in range(2)] for more in (0, 16))
    for pair, sizes in ((fits, []), (large, [most + 16])):
        before = len(cards.library.sizes[0])
        found = on_both(lambda rank, pair=pair: chosen[rank].add(pair[rank]))
        assert all(torch.equal(one, in_rank_order(pair)) for one in found)
        assert cards.library.sizes[0][before:] == sizes
    why = r"a sum of \[1, 524296\] torch.bfloat16 goes through the library, which no graph may hold"
    with torch.cuda.graph(torch.cuda.CUDAGraph(), None, capture_error_mode="thread_local"), pytest.raises(RuntimeError, match=why):
        chosen[0].add(large[0])


@pytest.mark.parametrize("comes", [0, 20], ids=["never", "while it is tried only"])
def test_a_rank_that_does_not_come_is_given_up_within_its_patience(
    cards: Cards, comes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    class Absent(cards.peer.PeerSum):
        """Rank 1 stays away from the sums after the first ones."""

        calls = 0

        def __call__(self, partial: Tensor) -> Tensor:
            self.calls += 1
            return super().__call__(partial) if self.calls <= comes or not OWN.copy else torch.zeros_like(partial)

    assert cards.peer.TRIALS == 20
    monkeypatch.setattr(cards.peer, "PeerSum", Absent)
    monkeypatch.setattr(cards.peer, "TRIAL_PATIENCE_S", 2.0)
    caplog.set_level(logging.INFO)
    began = time.monotonic()
    found = cards.chosen()
    assert time.monotonic() - began < 25
    assert [type(one) for one in found] == [cards.exchange.TorchExchange] * 2
    reason = f"rank 0: {'' if comes else 'sum 0 of 8192 bytes: '}the other rank was waited for 2 s in vain"
    assert [one.getMessage() for one in caplog.records] == [f"sums of ranks go through NCCL: {reason}"] * 2


@pytest.mark.parametrize("off", ["LOCKSTEP_PEER_EXCHANGE=off", "NCCL_P2P_DISABLE=1", "NCCL_P2P_LEVEL=LOC"])
def test_a_way_between_the_cards_that_is_switched_off_is_not_tried(
    cards: Cards, off: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def opened(*_: object) -> None:
        raise AssertionError("memory of another card was asked for")

    monkeypatch.setattr(cards.peer, "Region", opened)
    monkeypatch.setenv(*off.split("="))
    caplog.set_level(logging.INFO)
    assert [type(one) for one in cards.chosen()] == [cards.exchange.TorchExchange] * 2
    assert [one.getMessage() for one in caplog.records] == [f"sums of ranks go through NCCL: {off}"] * 2
