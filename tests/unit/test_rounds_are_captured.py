"""When steps of a GPU become a graph: only if every rank can, and if a replay has the bits of plain launches. A stand-in for the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.random_model import text_config
from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.config.share import Share
from lockstep.layers.exchange import ALONE, Exchange
from lockstep.model.rounds import BUCKETS, Rounds

CONFIG = text_config()


class Forward:
    """Makes rows of what a step is told. Each call is a launch; on a capture only the place of its results is noted."""

    def __init__(self) -> None:
        self.launches = 0
        self.capturing: Graph | None = None

    def __call__(self, rows: Any, taps: Any, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def values() -> tuple[Tensor, Tensor, Tensor]:
            hidden = rows.ids[:, None] * torch.tensor([1.0, 2.0])
            return hidden, hidden[None] + 1, hidden * 3

        if self.capturing is None:
            self.launches += 1
            return values()
        hidden, kept, logits = (torch.full_like(one, -7) for one in values())
        self.capturing.calls, self.capturing.out = values, (hidden, kept, logits)
        return hidden, kept, logits


class Graph:
    """Replays what was captured into the places the capture gave, one value too many by `off`."""

    made: list[Graph] = []  # noqa: RUF012
    off = 0.0

    def __init__(self) -> None:
        self.calls: Any = None
        self.out: tuple[Tensor, ...] = ()
        self.replays = 0
        Graph.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        for place, value in zip(self.out, self.calls(), strict=True):
            place.copy_(value + self.off)


class Pair:
    """One of two ranks; `other` is what the other rank says to each question of all."""

    share, captured = Share(0, 2), True

    def __init__(self, *other: bool) -> None:
        self.answers = list(other)

    def add(self, partial: Tensor) -> Tensor:
        return partial + float(self.answers.pop(0))

    def join(self, columns: Tensor) -> Tensor:
        return columns

    def agree(self, number: float) -> float:
        return number


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> Forward:
    one = Forward()

    @contextlib.contextmanager
    def capture(graph: Graph, pool: Any, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        one.capturing = graph
        try:
            yield
        finally:
            one.capturing = None

    monkeypatch.setattr(Graph, "made", [])
    monkeypatch.setattr(Graph, "off", 0.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return one


def rounds_of(forward: Any, exchange: Exchange) -> Rounds:
    return Rounds(CONFIG, [], TokenPool(CONFIG, 8, "cpu", torch.float32), StateSlots(CONFIG, 2, "cpu"), forward, exchange)


def step(rounds: Rounds, *ids: int) -> list[Tensor]:
    """One window of `ids`; hidden rows, taps and logits, copied."""
    out, _ = rounds.run([Sequence(0, [3])], [list(ids)], (1,) * len(ids), [0], ())
    return [one.clone() for one in out]


def right(*ids: int) -> list[Tensor]:
    hidden = torch.tensor(ids)[:, None] * torch.tensor([1.0, 2.0])
    return [hidden, hidden[None] + 1, hidden * 3]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(map(torch.equal, found, wanted))


def test_the_first_step_of_a_size_is_captured_and_every_later_one_replayed(forward: Forward):
    rounds = rounds_of(forward, ALONE)
    for ids in ((5, 6), (9, 2), (1, 1)):
        assert same(step(rounds, *ids), right(*ids))
    assert forward.launches == 1
    assert [graph.replays for graph in Graph.made] == [3]
    assert same(step(rounds, 4), right(4))
    assert len(Graph.made) == 2


def test_steps_stay_plain_where_the_exchange_may_not_be_captured(forward: Forward):
    pair = Pair()
    pair.captured = False
    rounds = rounds_of(forward, pair)
    assert all(same(step(rounds, ids), right(ids)) for ids in (5, 6))
    assert (forward.launches, Graph.made) == (2, [])


@pytest.mark.parametrize("exchange", [lambda: ALONE, lambda: Pair(True, True)], ids=["alone", "the other is content"])
def test_a_replay_with_other_bits_serves_nobody(forward: Forward, exchange: Callable[[], Exchange], caplog: pytest.LogCaptureFixture):
    Graph.off = 0.5
    rounds = rounds_of(forward, exchange())
    assert all(same(step(rounds, ids), right(ids)) for ids in (5, 6, 7))
    assert not rounds.graphs
    assert [graph.replays for graph in Graph.made] == [1]
    assert "steps of 1 rows stay plain launches, which is slower: a replay gives other bits than plain launches" in caplog.text


def test_a_capture_that_fails_leaves_plain_steps(forward: Forward, caplog: pytest.LogCaptureFixture):
    def refuses(rows: Any, taps: Any, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if forward.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return forward(rows, taps, order)

    rounds = rounds_of(refuses, Pair(True))
    assert all(same(step(rounds, ids), right(ids)) for ids in (5, 6))
    assert [graph.replays for graph in Graph.made] == [0]
    assert "it cannot be captured: operation not permitted when stream is capturing" in caplog.text


@pytest.mark.parametrize(("answers", "replays"), [((False,), 0), ((True, False), 1)], ids=["it cannot capture", "its replay differs"])
def test_what_another_rank_refuses_is_not_done_here(
    forward: Forward, answers: tuple[bool, ...], replays: int, caplog: pytest.LogCaptureFixture
):
    pair = Pair(*answers)
    rounds = rounds_of(forward, pair)
    assert all(same(step(rounds, ids), right(ids)) for ids in (5, 6))
    assert pair.answers == []
    assert [graph.replays for graph in Graph.made] == [replays]
    assert "another rank refuses" in caplog.text


def test_two_ranks_that_agree_replay(forward: Forward):
    rounds = rounds_of(forward, Pair(True, True))
    assert all(same(step(rounds, ids), right(ids)) for ids in (5, 6))
    assert (forward.launches, [graph.replays for graph in Graph.made]) == (1, [2])


def test_rows_behind_the_last_are_not_compared(forward: Forward, monkeypatch: pytest.MonkeyPatch):
    count, size = 5, 6
    assert size in BUCKETS
    assert count not in BUCKETS

    def replay(graph: Graph) -> None:
        for at, (place, value) in enumerate(zip(graph.out, graph.calls(), strict=True)):
            place.copy_(value)
            place[(slice(None), slice(count, None)) if at == 1 else slice(count, None)] = torch.nan

    monkeypatch.setattr(Graph, "replay", replay)
    rounds = rounds_of(forward, ALONE)
    ids = range(3, 3 + count)
    assert all(same(step(rounds, *ids), right(*ids)) for _ in range(2))
    assert rounds.graphs
