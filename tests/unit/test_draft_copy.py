"""Copy drafts: what they find, what they refuse to find, and how their length follows success."""

from __future__ import annotations

import random

import pytest

from lockstep.draft.copy import LONGEST_COPY, LOOK_BACK, PROMPT_GRAM, REPLY_GRAM, CopyIndex


def index(prompt: list[int], reply: list[int], longest: int = LONGEST_COPY) -> CopyIndex:
    made = CopyIndex(len(prompt), longest)
    made.extend(prompt + reply)
    return made


def plain(prompt: list[int], reply: list[int], limit: int) -> tuple[int, ...]:
    """The definition, by search from the end."""
    known = prompt + reply
    first = min(len(prompt), len(known) - 1)
    for gram, places in ((REPLY_GRAM, range(len(known) - 1, len(prompt), -1)), (PROMPT_GRAM, range(first, 0, -1))):
        for place in places:
            if place >= gram and len(known) >= gram and known[place - gram : place] == known[-gram:]:
                copied = list(known[place:])
                while len(copied) < limit:
                    copied += copied
                return tuple(copied[:limit])
    return ()


def test_eight_tokens_of_the_prompt_are_enough_and_fifteen_are_copied():
    prompt = list(range(100))
    assert index(prompt, [500, *range(30, 38)]).propose(31) == tuple(range(38, 53))
    assert index(prompt, [500, *range(30, 37)]).propose(31) == ()


def test_a_place_inside_the_reply_needs_sixteen_tokens():
    said = list(range(200, 240))
    assert index([1], [*said, 7, *said[:15]]).propose(4) == ()
    assert index([1], [*said, 7, *said[:16]]).propose(4) == tuple(said[16:20])


def test_the_latest_place_wins():
    gram = list(range(8))
    assert index([*gram, 50, 51, *gram, 60, 61, 62], gram).propose(2) == (60, 61)


def test_a_loop_is_continued_past_the_present():
    assert index([9], [1, 2, 3] * 8).propose(7) == (1, 2, 3, 1, 2, 3, 1)


def test_proposals_are_those_of_a_plain_search():
    draws = random.Random(3)
    found = 0
    for _ in range(400):
        prompt = [draws.randrange(2) for _ in range(draws.randrange(1, 90))]
        reply = [draws.randrange(9) for _ in range(draws.randrange(0, 30))]
        for _ in range(draws.randrange(3)):
            reply += (prompt + reply)[draws.randrange(len(prompt)) :][: draws.randrange(40)]
        copied = index(prompt, reply).propose(6)
        assert copied == plain(prompt, reply, 6)
        found += bool(copied)
    assert 50 < found < 350


def test_the_index_grows_token_by_token_as_at_once():
    draws = random.Random(4)
    tokens = [draws.randrange(2) for _ in range(80)]
    slow = CopyIndex(40)
    for at, token in enumerate(tokens):
        slow.extend([token])
        if at >= 40:
            assert slow.propose(15) == index(tokens[:40], tokens[40 : at + 1]).propose(15)


def test_a_failed_copy_halves_the_next_and_a_full_one_doubles_it():
    one = index(list(range(100)), list(range(10, 18)))
    lengths = []
    for right in (14, 0, 0, 0, 1, 2, 4, 8, 15):
        proposed = one.propose(31)
        one.settle([*proposed[:right], 999][:15] if right < len(proposed) else [*proposed, 999])
        lengths.append((len(proposed), one.length))
    assert lengths == [(15, 7), (7, 3), (3, 1), (1, 1), (1, 2), (2, 4), (4, 8), (8, 15), (15, 15)]


def test_a_copy_nobody_used_is_judged_by_what_followed():
    one = index(list(range(100)), list(range(10, 18)))
    one.propose(31)
    one.settle([18])
    assert one.length == LONGEST_COPY
    one.propose(31)
    one.settle([77])
    assert one.length == LONGEST_COPY // 2
    one.settle([77])
    assert one.length == LONGEST_COPY // 2, "one proposal is judged once"


def test_grams_that_cannot_be_told_apart_by_their_hash_give_a_true_copy_or_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lockstep.draft.copy._FACTORS", (0,) * PROMPT_GRAM)
    draws = random.Random(5)
    prompt = [draws.randrange(2, 9) for _ in range(200)]
    copies = [index(prompt, prompt[at : at + PROMPT_GRAM]).propose(6) for at in range(180)]
    true = [plain(prompt, prompt[at : at + PROMPT_GRAM], 6) for at in range(180)]
    assert copies[165:] == true[165:]
    assert set(copies) <= {(), *true}
    assert copies[0] == (), "so many are not compared"


def test_a_place_further_back_than_is_looked_is_not_found():
    gram = list(range(100, 100 + PROMPT_GRAM))
    for behind, found in ((LOOK_BACK - PROMPT_GRAM - 1, (7, 7)), (LOOK_BACK, ())):
        assert index([*gram, *[7] * behind, 8], gram).propose(2) == found
