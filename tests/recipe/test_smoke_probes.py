"""What the smoke test accepts as an answer, and what it refuses."""

from typing import Any

import pytest

from recipe.probes import is_collapsed, judge_tokens, judge_word, probes
from recipe.server import judge


def reply(text: str | None, *, tokens: int = 3, reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": reason}], "usage": {"completion_tokens": tokens}}


@pytest.mark.parametrize("text", ["ready", " Ready.", '"ready"'])
def test_the_word_asked_for_is_accepted(text: str) -> None:
    assert judge_word(reply(text)) == ""


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (reply(""), "blank"),
        (reply(None), "blank"),
        (reply("!!!!!!!!!"), "over and over"),
        (reply("not ready"), "not 'ready'"),
        ({}, "blank"),
        ({"choices": [None]}, "blank"),
    ],
)
def test_any_other_answer_is_refused_with_its_reason(answer: dict[str, Any], complaint: str) -> None:
    assert complaint in judge_word(answer)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (reply("x"), ""),
        (reply("", reason="length"), ""),
        (reply("x", tokens=0), "no token"),
        (reply("x", reason="error"), "finish_reason"),
        ({"usage": {"completion_tokens": 2}}, "no choice"),
        ({}, "no token"),
        ({"usage": None}, "no token"),
    ],
)
def test_random_weights_have_to_generate_something(answer: dict[str, Any], complaint: str) -> None:
    told = judge_tokens(answer)
    assert complaint in told
    assert bool(told) == bool(complaint)


def test_one_character_over_and_over_is_a_collapse_and_a_short_word_is_not() -> None:
    assert is_collapsed("aaaa a\naa")
    assert not is_collapsed("aaa")
    assert not is_collapsed("ababab")
    assert not is_collapsed("")


def test_the_published_checkpoint_is_asked_for_the_exact_word() -> None:
    assert [probe.judge for probe in probes("two-gpu")] == [judge_word]


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"status": "dead", "cause": "gone"}, "failed"),
        ({"status": "stalled"}, "failed"),
        ({"status": "draining"}, "failed"),
        ({"status": "loading"}, "loading"),
        ({}, "loading"),
    ],
)
def test_a_server_that_is_not_ready_is_loading_unless_it_says_it_is_gone(told: dict[str, Any], state: str) -> None:
    assert judge(told).state == state
