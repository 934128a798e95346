"""Whoever drafts, whoever rides along, on one rank and on two: token ids and final states are those of serial steps alone.

See `fixtures.drafting_matrix`; `pytest -s` prints how many rounds there were and how many of them were kept in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from fixtures.drafters import CorruptedOracle
from fixtures.drafting_matrix import COMPANIES, DRAFTERS, SAMPLINGS, Cell, Matrix, RankPair
from fixtures.stepped_engine import Tally

Cells = Callable[[str, str], list[Cell]]
RANKS = ("one rank", "two ranks")
# These err in every company; a learned drafter, in a short reply, only in some. The last goes by the clock, so by chance not at all.
OFTEN_WRONG = ("random", "oracle", "copy")
BY_CLOCK = "all"


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return Matrix()


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Cells]:
    pair = RankPair()
    yield pair.cells
    pair.end()


@pytest.fixture(scope="module")
def cells(request: pytest.FixtureRequest) -> dict[str, Cells]:
    """By number of ranks; the pair is started by whoever asks first."""
    return {
        "one rank": lambda *asked: [request.getfixturevalue("matrix").cell(*asked)],
        "two ranks": lambda *asked: request.getfixturevalue("two_ranks")(*asked),
    }


@pytest.fixture(scope="module")
def total() -> Iterator[dict[tuple[str, str], Tally]]:
    """Rounds of the whole matrix by ranks and drafter, printed at its end."""
    tallies = {(ranks, name): Tally() for ranks in RANKS for name in DRAFTERS}
    yield tallies
    for (ranks, name), tally in tallies.items():
        words = f"{tally.rounds} drafted rounds, {tally.partly} partly kept, {tally.accepted} of {tally.drafted} drafts kept"
        print(f"{ranks}, {name}: {words}")  # noqa: T201


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("ranks", RANKS)
def test_drafted_equals_serial(cells: dict[str, Cells], total: dict[tuple[str, str], Tally], ranks: str, name: str, sampling: str):
    found = cells[ranks](name, sampling)
    assert [cell.differing for cell in found] == [[]] * len(found)
    assert all(cell.replies == 4 * len(COMPANIES) for cell in found)
    assert all((cell.tokens, cell.tallies) == (found[0].tokens, found[0].tallies) for cell in found), "ranks chose differently"
    total[ranks, name].add(found[0].tally)
    if name in ("none", BY_CLOCK):
        assert (found[0].tally.rounds > 0) == (name == BY_CLOCK)
        return
    assert found[0].tally.partly > 0
    for company, tally in found[0].tallies.items():
        assert tally.rounds > 0, company
        assert name not in OFTEN_WRONG or tally.partly > 0, company


def test_requests_that_refuse_drafts_are_served_serially_beside_drafted_ones(matrix: Matrix):
    asked, serial = matrix.requests("greedy"), matrix.serial("greedy")
    mixed = [replace(one, draft=at % 2 == 0) for at, one in enumerate(asked)]
    oracle = CorruptedOracle({key: reply.tokens for key, reply in serial.items()}, matrix.stepped.vocabulary, errs=0.0)
    replies = matrix.stepped.serve([(0, one) for one in mixed], oracle, 7)
    assert {key: reply.bits for key, reply in replies.items()} == {key: reply.bits for key, reply in serial.items()}
    for one in mixed:
        usage = replies[one.id].usage
        assert (usage.drafted_tokens > 0) == one.draft
        assert one.draft or usage.rounds == one.max_tokens
        assert usage.completion_tokens == one.max_tokens
