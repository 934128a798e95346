"""How deep to draft: what policy words mean, and which depth a table of measured milliseconds asks for."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.draft.cost import RowCosts
from lockstep.draft.policy import Policy, PolicyError, parse_policy


@pytest.mark.parametrize(
    ("word", "block", "policy"),
    [
        ("0", False, Policy(0)),
        ("5", True, Policy(5)),
        ("c3:0.4", False, Policy(3, 0.4)),
        ("nc3:0.4", False, Policy(3, 0.4, noisy=True)),
        ("f7", True, Policy(7)),
        ("fc5:0.3", True, Policy(5, 0.3)),
        ("fnc7:0.3", True, Policy(7, 0.3, noisy=True, blur=2.0)),
        ("fnc7:0.3:1.5", True, Policy(7, 0.3, noisy=True, blur=1.5)),
        ("cost3", False, Policy(3, by_cost=True)),
        ("fcost7:noisy:4", True, Policy(7, noisy=True, blur=4.0, by_cost=True)),
    ],
)
def test_a_word_means_its_policy(word: str, block: bool, policy: Policy):
    assert parse_policy(word, block) == policy


NO_WORDS = ("", "x", "f", "c3", "fc5", "fnc7", "fnc7:0.3:2:1", "c3:0", "c3:1.5", "f7:0.3", "cost3:loud", "c3:.", "-1", "100")


@pytest.mark.parametrize("word", NO_WORDS)
def test_any_other_word_is_refused(word: str):
    with pytest.raises(PolicyError, match="needed: "):
        parse_policy(word, word.startswith("f"))


@pytest.mark.parametrize(("word", "block"), [("f7", False), ("fnc7:0.3", False), ("c3:0.4", True), ("nc3:0.4", True)])
def test_a_word_of_the_other_drafter_is_refused(word: str, block: bool):
    with pytest.raises(PolicyError, match="a word of the drafter in use"):
        parse_policy(word, block)


def test_drafts_stop_before_the_product_falls_under_the_floor_but_never_before_the_first():
    assert Policy(7, 0.3).depth((0.9, 0.8, 0.5, 0.5)) == 3
    assert Policy(7, 0.3).depth((0.01, 0.99)) == 1
    assert Policy(7, 0.3).depth((0.3,)) == 1
    assert Policy(2).depth((0.1, 0.1, 0.1)) == 2
    assert Policy(7).depth(()) == 0


@given(st.lists(st.floats(0, 1), max_size=9), st.integers(0, 8), st.floats(0, 1))
def test_a_chain_that_asks_after_each_draft_ends_where_the_whole_would_be_cut(chances: list[float], most: int, floor: float):
    policy, drawn = Policy(most, floor), 0
    while drawn < len(chances) and policy.goes_on(chances[:drawn]):
        drawn += 1
    assert policy.depth(chances[:drawn]) == policy.depth(chances)


def table(ms: dict[int, float]) -> RowCosts:
    costs = RowCosts()
    for rows, value in ms.items():
        costs.observe(rows, value / 1000)
    return costs


def test_a_row_count_nobody_has_seen_lies_between_its_neighbours():
    costs = table({1: 4.0, 9: 12.0})
    assert [costs.step_ms(rows) for rows in (1, 3, 9, 30)] == pytest.approx([4.0, 6.0, 12.0, 12.0])
    assert RowCosts().step_ms(5) == 1.0


def test_times_are_followed_and_one_slow_step_counts_as_twice_the_usual():
    costs = table({1: 10.0})
    costs.observe(1, 5.0)
    assert costs.step_ms(1) == pytest.approx(11.0)
    for _ in range(200):
        costs.observe(1, 0.004)
    assert costs.step_ms(1) == pytest.approx(4.0, rel=0.01)


def test_rows_are_filled_as_long_as_they_pay():
    free, dear = table({1: 10.0, 8: 10.0, 9: 20.0, 32: 40.0}), table({1: 10.0, 32: 320.0})
    assert free.depths([(0.9,) * 12], 0) == [7]
    assert dear.depths([(0.9,) * 12], 0) == [0]
    assert free.depths([(0.9, 0.9, 0.9, 0.1, 0.9), (0.2, 0.2)], 0) == [5, 1]


def test_time_spent_drafting_makes_depth_pay_more():
    costs = table({1: 10.0, 2: 18.0, 3: 26.0, 4: 34.0})
    before = costs.depths([(0.6, 0.6, 0.6)], 0)
    costs.observe_drafting(0.030)
    assert (before, costs.depths([(0.6, 0.6, 0.6)], 0)) == ([0], [2])


@given(
    st.lists(st.lists(st.floats(0.01, 0.99), max_size=4).map(tuple), min_size=1, max_size=3),
    st.lists(st.floats(0.1, 5.0), min_size=32, max_size=32),
    st.integers(0, 4),
)
def test_no_other_depths_give_more_expected_tokens_a_millisecond(chances: list[tuple[float, ...]], steps: list[float], others: int):
    costs = table({rows: 5 + sum(steps[:rows]) for rows in range(1, 33)})

    def rate(depths: tuple[int, ...]) -> float:
        tokens = sum(1 + sum(math.prod(row[: at + 1]) for at in range(depth)) for row, depth in zip(chances, depths, strict=True))
        return tokens / costs.step_ms(len(chances) + others + sum(depths))

    best = max(rate(depths) for depths in itertools.product(*(range(len(row) + 1) for row in chances)))
    assert rate(tuple(costs.depths(chances, others))) == pytest.approx(best)
