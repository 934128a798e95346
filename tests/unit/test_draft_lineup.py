"""Who drafts when: copies before the neural drafter, until they fail; and what the policy cuts."""

from __future__ import annotations

import torch

from lockstep.cache import Sequence
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.cost import RowCosts
from lockstep.draft.lineup import Lineup
from lockstep.draft.policy import Policy
from lockstep.draft.stream import Ask, Drafter, Kept, Proposal, Stream

PROMPT = tuple(range(100))


class Neural(Drafter):
    """Guesses 900, 901, .. and notes how many drafts each ask wanted."""

    taps = (3,)

    def __init__(self, chances: tuple[float, ...]) -> None:
        self.chances, self.limits, self.absorbed = chances, [], 0

    def absorb(self, kept: list[Kept]) -> None:
        self.absorbed += len(kept)

    def propose(self, asks: list[Ask]) -> list[Proposal]:
        self.limits.append([ask.limit for ask in asks])
        return [self._one(ask) for ask in asks]

    def _one(self, ask: Ask) -> Proposal:
        count = min(ask.limit, len(self.chances))
        return Proposal(tuple(range(900, 900 + count)), self.chances[:count])


def kept(stream: Stream, *following: int) -> Kept:
    stream.generated += len(following)
    return Kept(stream, 0, following, torch.empty(1, len(following), 4))


def reading(lineup: Lineup, name: str, said: tuple[int, ...]) -> Stream:
    """A stream whose prompt and first reply tokens were absorbed."""
    stream = Stream(EngineRequest(name, PROMPT, Sampling(temperature=0.0), 99), Sequence(0))
    lineup.admit(stream)
    lineup.absorb([Kept(stream, 0, (*PROMPT[1:], said[0]), torch.empty(1, len(PROMPT), 4))])
    if said[1:]:
        lineup.absorb([kept(stream, *said[1:])])
    return stream


def test_a_stream_with_something_to_copy_copies_and_the_other_asks_the_neural_drafter():
    neural = Neural((0.9,) * 7)
    lineup = Lineup(neural, Policy(7), 15, RowCosts())
    streams = [reading(lineup, "copy", (500, *range(30, 38))), reading(lineup, "fresh", (500, 501))]
    drafts = lineup.propose([Ask(stream, 12) for stream in streams])
    assert drafts[0].tokens == tuple(range(38, 50))
    assert drafts[1].tokens == tuple(range(900, 907))
    assert (neural.limits, neural.absorbed, lineup.taps) == ([[7]], 4, (3,))


def test_copies_that_failed_stand_back_until_they_would_have_held():
    lineup = Lineup(Neural((0.9,) * 7), Policy(7), 15, RowCosts())
    stream = reading(lineup, "a", (500, *range(30, 38)))
    assert lineup.propose([Ask(stream, 15)])[0].tokens[0] == 38
    lineup.absorb([kept(stream, 700, *range(50, 58))])
    assert lineup.propose([Ask(stream, 15)])[0].tokens[0] == 900, "a copy of 7 is not better than 7 drafts"
    lineup.absorb([kept(stream, 58)])
    assert lineup.propose([Ask(stream, 15)])[0].tokens[0] == 59


def test_the_policy_cuts_neural_drafts_and_never_copies():
    lineup = Lineup(Neural((0.9, 0.5, 0.5, 0.9)), Policy(7, 0.3), 15, RowCosts())
    streams = [reading(lineup, "copy", (500, *range(30, 38))), reading(lineup, "fresh", (500, 501))]
    assert [len(one.tokens) for one in lineup.propose([Ask(stream, 15) for stream in streams])] == [15, 2]


def test_costs_decide_when_the_policy_says_so_and_count_the_rows_of_copies():
    costs = RowCosts()
    for rows in range(1, 33):
        costs.observe(rows, 0.010 if rows <= 20 else 1.0)
    lineup = Lineup(Neural((0.9,) * 7), Policy(7, by_cost=True), 15, costs)
    streams = [reading(lineup, "copy", (500, *range(30, 38))), reading(lineup, "fresh", (500, 501))]
    assert [len(one.tokens) for one in lineup.propose([Ask(stream, 15) for stream in streams])] == [15, 3]


def test_without_copies_or_a_policy_there_are_no_drafts():
    lineup = Lineup(Drafter(), Policy(0), 0, RowCosts())
    assert lineup.propose([Ask(reading(lineup, "a", (500, *range(30, 38))), 15)]) == [Proposal()]
