"""However the engine cuts a reply into rounds, the client reads the same text."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.text.loops import LONGEST_CYCLE, cycle
from lockstep.text.reply import ReplyText
from lockstep.text.stops import StopScanner
from lockstep.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(Path(__file__).parents[2] / "embedded")
OPEN, CLOSE = TOKENIZER.think_open, TOKENIZER.think_close
EOS = TOKENIZER.added["<|user|>"]


def read(rounds: list[list[int]], stops: tuple[str, ...] = (), in_reasoning: bool = False) -> tuple[str, str, str | None, list[int], int]:
    reply = ReplyText(TOKENIZER, stops, in_reasoning)
    deltas = [reply.feed(tokens) for tokens in rounds] + [reply.finish()]
    return "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas), reply.stopped, reply.tokens, reply.reasoning_tokens


def cut(tokens: list[int], places: set[int]) -> list[list[int]]:
    edges = [0, *sorted(places), len(tokens)]
    return [tokens[a:b] for a, b in itertools.pairwise(edges)]


pieces = st.lists(
    st.sampled_from(["five", " fi", "ve", "☃", "é🙂", "</think>", "\n\n", "END", " and ", "a"]).map(TOKENIZER.encode)
    | st.sampled_from([[OPEN], [CLOSE], [EOS], [200], [131]])
    | st.integers(0, TOKENIZER.size - 1).map(lambda token: [token]),
    max_size=10,
).map(lambda lists: list(itertools.chain.from_iterable(lists)))


@given(pieces, st.sampled_from([(), ("five",), ("fi", "five", "END"), ("ve and five", " and"), ("🙂",)]), st.booleans(), st.randoms())
@settings(max_examples=500)
def test_any_cut_into_rounds_gives_the_same_reply(tokens: list[int], stops: tuple[str, ...], thinking: bool, chance: random.Random) -> None:
    whole = read([tokens], stops, thinking)
    assert read([[token] for token in tokens], stops, thinking) == whole
    places = {place for place in range(1, len(tokens)) if chance.random() < 0.4}
    assert read(cut(tokens, places), stops, thinking) == whole


def test_every_single_way_of_cutting_a_short_reply_gives_the_same_reply() -> None:
    tokens = [*TOKENIZER.encode("hm"), CLOSE, *TOKENIZER.encode("é five END")]
    assert len(tokens) <= 14
    whole = read([tokens], ("END",), True)
    assert whole[:3] == ("hm", "é five ", "END")
    for size in range(len(tokens)):
        for places in itertools.combinations(range(1, len(tokens)), size):
            assert read(cut(tokens, set(places)), ("END",), True) == whole


def test_reasoning_ends_at_the_close_token_and_not_at_its_spelling() -> None:
    tokens = [*TOKENIZER.encode("a </think> b"), CLOSE, *TOKENIZER.encode("answer"), EOS]
    reasoning, content, _, kept, count = read([tokens], in_reasoning=True)
    assert (reasoning, content, kept) == ("a </think> b", "answer", tokens)
    assert count == tokens.index(CLOSE) + 1


def test_stray_think_tags_never_show_and_an_answer_does_not_turn_into_thought() -> None:
    words = TOKENIZER.encode("yes")
    assert read([[CLOSE, *words, OPEN, *words, CLOSE]])[:2] == ("", "yesyes")
    assert read([[OPEN, *words, CLOSE, *words]])[:2] == ("yes", "yes")


def test_stop_strings_do_not_match_in_reasoning() -> None:
    tokens = [*TOKENIZER.encode("END"), CLOSE, *TOKENIZER.encode("x END y")]
    assert read([tokens], ("END",), True)[:3] == ("END", "x ", "END")


def test_ids_behind_a_stop_are_no_part_of_the_reply() -> None:
    before, after = TOKENIZER.encode("one five"), TOKENIZER.encode(" six seven")
    _, content, stopped, kept, _ = read([before + after], ("five",))
    assert (content, stopped, kept) == ("one ", "five", before)


def test_only_what_can_still_become_a_stop_is_held_back() -> None:
    scanner = StopScanner(["<end>"])
    assert [scanner.feed(text) for text in ("a<", "b<e", "n", "x")] == ["a", "<b", "", "<enx"]
    assert scanner.feed("<en") == ""
    assert scanner.flush() == "<en"


def test_the_stop_that_is_complete_first_wins_and_of_those_the_longest() -> None:
    scanner = StopScanner(["cd", "bcd", "abcdef"])
    assert scanner.feed("xabcdef") == "xa"
    assert scanner.matched == "bcd"


@given(st.text("ab", max_size=14), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.randoms())
@settings(max_examples=500)
def test_a_scanner_agrees_with_looking_at_every_prefix(text: str, stops: list[str], chance: random.Random) -> None:
    expected = text
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            expected = text[: end - max(map(len, found))]
            break
    scanner, shown, at = StopScanner(stops), "", 0
    while at < len(text):
        size = chance.randint(1, 4)
        shown += scanner.feed(text[at : at + size])
        assert expected.startswith(shown)
        at += size
    assert shown + scanner.flush() == expected


@pytest.mark.parametrize("token", [TOKENIZER.added["<|user|>"], TOKENIZER.size, TOKENIZER.size + 20])
def test_control_tokens_and_padding_rows_show_nothing(token: int) -> None:
    assert read([[token]])[:2] == ("", "")


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 24))
def test_a_loop_is_found_where_every_id_of_the_last_ones_equals_that_a_cycle_before(tokens: list[int], limit: int) -> None:
    last = tokens[-limit:] if limit else []
    lengths = [
        length
        for length in range(1, LONGEST_CYCLE + 1)
        if limit >= 2 * length and len(last) == limit and all(last[at] == last[at - length] for at in range(length, limit))
    ]
    assert cycle(tokens, limit) == min(lengths, default=0)


@pytest.mark.parametrize("length", [1, 2, 7, LONGEST_CYCLE, LONGEST_CYCLE + 1])
def test_a_reply_that_loops_ends_at_one_id_however_it_is_cut(length: int) -> None:
    begin, looped = TOKENIZER.encode("once upon a "), [300 + at for at in range(length)]
    tokens = begin + looped * 80
    for size in (1, 3, 64, len(tokens)):
        reply = ReplyText(TOKENIZER, in_reasoning=True, loop_limit=64)
        for at in range(0, len(tokens), size):
            reply.feed(tokens[at : at + size])
        assert reply.cycle == (length if length <= LONGEST_CYCLE else 0)
        assert reply.tokens == (tokens[: len(begin) + 64] if reply.cycle else tokens)
