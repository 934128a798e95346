"""What the smoke test accepts as an answer, and what it refuses."""

from typing import Any

import pytest

from recipe.server import judge
from verify.judge import Reply
from verify.probes import PICTURE_PROBE, PROBES, collapse

BY_NAME = {probe.name: probe for probe in (*PROBES, PICTURE_PROBE)}
PARIS = (("get_weather", {"city": "Paris"}),)


@pytest.mark.parametrize(
    ("probe", "reply"),
    [
        ("exact word", Reply("ready")),
        ("exact word", Reply(" Ready.")),
        ("exact word", Reply('"ready"')),
        ("JSON object", Reply('{"status":"ready"}')),
        ("JSON object", Reply('```json\n{"status": "ready"}\n```')),
        ("JSON by schema", Reply('{"status": "ready"}')),
        ("tool call", Reply(calls=PARIS)),
        ("tool call", Reply("I will look it up.", calls=PARIS)),
        ("picture", Reply("Red.")),
    ],
)
def test_a_right_answer_is_accepted_in_every_usual_form(probe: str, reply: Reply) -> None:
    assert BY_NAME[probe].judge(reply) == ""
    assert collapse(reply) == ""


@pytest.mark.parametrize(
    ("probe", "reply", "complaint"),
    [
        ("exact word", Reply(), "blank"),
        ("exact word", Reply("not ready"), "not 'ready'"),
        ("JSON object", Reply("ready"), "needed JSON"),
        ("JSON object", Reply('{"status": "ready", "more": 1}'), 'needed \'{"status": "ready"}\''),
        ("tool call", Reply("Paris"), "no call but 'Paris'"),
        ("tool call", Reply(calls=(("get_weather", '{"city":'),)), "needed get_weather"),
        ("tool call", Reply(calls=PARIS * 2), "1 calls too many"),
        ("picture", Reply("red or blue"), "blue"),
        ("picture", Reply(), "needed red"),
    ],
)
def test_any_other_answer_is_refused_with_its_reason(probe: str, reply: Reply, complaint: str) -> None:
    assert complaint in BY_NAME[probe].judge(reply)


@pytest.mark.parametrize(
    ("reply", "unit"),
    [
        (Reply("aaaa a\naa"), "a"),
        (Reply("Sure: " + "the " * 40), "the"),
        (Reply(reasoning="\u2603" * 9), "\u2603"),
        (Reply(calls=(("get_weather", {"city": "no " * 40}),), content="x"), "no"),
        (Reply(calls=(("get_weather", '{"city": ' + "ab" * 40),)), "ab"),
        (Reply("aaa"), ""),
        (Reply("ababab"), ""),
        (Reply("1, 2, 3, 4, 5, 6, 7, 8, 9, 10"), ""),
        (Reply(), ""),
    ],
)
def test_the_same_characters_over_and_over_are_a_collapse_and_a_short_word_is_not(reply: Reply, unit: str) -> None:
    assert collapse(reply) == unit


def test_every_question_is_greedy_and_without_thinking() -> None:
    for probe in BY_NAME.values():
        assert (probe.body["temperature"], probe.body["chat_template_kwargs"]) == (0, {"enable_thinking": False})


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
