"""A reply's way through a grammar, with a grammar of ids that is easy to see through."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.core.types import EngineRequest, Grammar, Sampling
from lockstep.run.constraint import Constraint
from lockstep.run.sampler import RowRequest, SamplingError, choose

STOP, OPEN, IDS = 0, 9, 10


class Path:
    """Allows, step by step, what a list of sets says."""

    def __init__(self, steps: list[set[int]]) -> None:
        self.steps, self.taken, self.masked = steps, [], 0

    def allowed(self):
        self.masked += 1
        mask = np.zeros(IDS, bool)
        if not self.is_terminated and len(self.taken) < len(self.steps):
            mask[list(self.steps[len(self.taken)])] = True
        return mask

    def accept(self, token: int) -> bool:
        if self.is_terminated or token not in self.steps[len(self.taken)]:
            return False
        self.taken.append(token)
        return True

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]

    @property
    def is_terminated(self) -> bool:
        return self.taken[-1:] == [STOP]


class Paths:
    def __init__(self, path: Path) -> None:
        self.path = path

    def compile(self, form: dict) -> bytes:
        raise AssertionError("a constraint compiles nothing")

    def matcher(self, compiled: bytes) -> Path:
        return self.path


def constraint(path: Path, begins_behind: int = -1) -> Constraint:
    request = EngineRequest("a", (1,), Sampling(), 20, frozenset({STOP}), grammar=Grammar("d", b"", begins_behind))
    return Constraint(request, Paths(path))


def ids(mask) -> set[int]:
    return set(np.flatnonzero(mask).tolist())


def test_drafts_end_before_the_first_that_the_grammar_forbids():
    path = Path([{1, 2}, {3, 4}, {5, 6}, {7, 8}])
    assert constraint(path).drafts((1, 3, 7, 8), 4) == (1, 3)
    assert path.taken == []


def test_ids_without_a_choice_are_drafted():
    path = Path([{1, 2}, {3}, {4}, {5, 6}])
    assert constraint(path).drafts((1, 8), 5) == (1, 3, 4)
    assert constraint(path).drafts((1,), 2) == (1, 3)
    assert constraint(path).drafts((), 3) == ()


def test_nothing_is_drafted_behind_the_end():
    path = Path([{1}, {STOP}])
    assert constraint(path).drafts((), 9) == (1, STOP)


def test_masks_found_while_drafting_are_those_of_the_rows():
    path = Path([{1, 2}, {3, 4}, {5, 6}])
    way = constraint(path)
    assert way.drafts((1, 3), 2) == (1, 3)
    seen = path.masked
    for wanted, token in (({1, 2}, 1), ({3, 4}, 3), ({5, 6}, 5)):
        assert ids(way.allowed()) == wanted
        way.take(token)
    assert path.masked == seen


def test_a_row_that_chose_otherwise_voids_the_masks_behind_it():
    path = Path([{1, 2}, {3, 4}, {5, 6}, {7}])
    way = constraint(path)
    way.drafts((1, 3), 2)
    assert ids(way.allowed()) == {1, 2}
    way.take(2)
    path.steps[1] = {8}
    assert ids(way.allowed()) == {8}


def test_before_the_opening_id_nothing_is_masked_and_the_reply_cannot_end():
    way = constraint(Path([{1}, {STOP}]), OPEN)
    assert way.allowed() is None
    assert way.held_back == {STOP}
    way.take(5)
    assert way.drafts((4, OPEN, 3, 3), 4) == (4, OPEN)
    way.take(OPEN)
    assert ids(way.allowed()) == {1}
    assert way.held_back == frozenset()


def test_a_masked_row_chooses_among_what_is_allowed_whatever_its_settings():
    logits = np.arange(IDS, dtype=np.float32)
    mask = np.zeros(IDS, bool)
    mask[[2, 3]] = True
    for sampling in (Sampling(temperature=0), Sampling(temperature=5.0, top_k=0, top_p=1.0), Sampling(logit_bias=((7, 100.0),))):
        chosen = {choose(logits, RowRequest(sampling, position, allowed=mask)) for position in range(50)}
        assert chosen <= {2, 3}


def test_a_row_without_an_allowed_id_names_the_grammar():
    with pytest.raises(SamplingError, match="grammar allows no token"):
        choose(np.zeros(IDS, np.float32), RowRequest(Sampling(), 3, allowed=np.zeros(IDS, bool)))
