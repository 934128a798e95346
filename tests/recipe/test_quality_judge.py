"""The rules that judge a reply: what passes, what does not, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest

from verify.judge import Reply, judge


def said(content: str, **more: Any) -> Reply:
    return Reply(content, finish="stop", **more)


@pytest.mark.parametrize("content", ["ready", " ready\n"])
def test_an_exact_word_passes_with_outer_white_space_only(content: str) -> None:
    assert judge({"kind": "exact", "value": "ready"}, said(content)) == ""


@pytest.mark.parametrize("content", ["Ready", "ready.", "ready ready", ""])
def test_an_exact_word_fails_with_anything_else(content: str) -> None:
    assert "needed exactly 'ready'" in judge({"kind": "exact", "value": "ready"}, said(content))


@pytest.mark.parametrize("content", ["3, 4, 5", "3 4 5", "3\n4\n5", "Sure: 3, 4, 5"])
def test_counting_passes_whatever_stands_between_the_numbers(content: str) -> None:
    assert judge({"kind": "integers", "first": 3, "last": 5}, said(content)) == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("3, 4", "number 3: found nothing more, needed 5"),
        ("3, 4, 5, 6", "number 4: found 6, needed the end after 5"),
        ("3, 5", "number 2: found 5, needed 4"),
        ("none", "number 1: found nothing more, needed 3"),
    ],
)
def test_counting_names_the_first_wrong_number(content: str, reason: str) -> None:
    assert judge({"kind": "integers", "first": 3, "last": 5}, said(content)) == reason


CALL = {"kind": "calls", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2.0}}, {"name": "now", "arguments": {}}]}


def test_calls_pass_in_any_order_with_equal_numbers() -> None:
    assert judge(CALL, said("", calls=(("now", {}), ("add", {"b": 2, "a": 1})))) == ""


@pytest.mark.parametrize(
    "calls",
    [
        (),
        (("add", {"a": 1, "b": 2}),),
        (("add", {"a": 1, "b": 2}), ("now", {}), ("now", {})),
        (("add", {"a": "1", "b": 2}), ("now", {})),
        (("add", {"a": True, "b": 2}), ("now", {})),
        (("add", {"a": 1, "b": 2, "c": 3}), ("now", {})),
        (("add", '{"a": 1'), ("now", {})),
        (("plus", {"a": 1, "b": 2}), ("now", {})),
    ],
)
def test_calls_fail_when_one_is_missing_extra_untyped_or_renamed(calls: tuple[tuple[str, Any], ...]) -> None:
    assert judge(CALL, said("", calls=calls))


def test_any_call_needs_a_non_empty_argument() -> None:
    expect = {"kind": "any_call", "name": "lookup", "argument": "topic"}
    assert judge(expect, said("", calls=(("lookup", {"topic": "owls"}),))) == ""
    assert "needed a call of lookup with a topic" in judge(expect, said("", calls=(("lookup", {"topic": " "}),)))
    assert judge(expect, said("lookup(owls)"))


@pytest.mark.parametrize("content", ['{"a": [1, true], "b": "x"}', '```json\n{"b": "x", "a": [1, true]}\n```'])
def test_json_passes_bare_or_in_one_fence(content: str) -> None:
    assert judge({"kind": "json", "value": {"a": [1, True], "b": "x"}}, said(content)) == ""


@pytest.mark.parametrize(
    "content", ['{"a": [1, 1], "b": "x"}', '{"a": [1, true]}', 'Here: {"a": [1, true], "b": "x"}', '{"a": [1, true], "b": "x"', "[]"]
)
def test_json_fails_with_other_values_other_keys_or_other_text(content: str) -> None:
    assert judge({"kind": "json", "value": {"a": [1, True], "b": "x"}}, said(content))


def test_contains_names_what_is_missing() -> None:
    expect = {"kind": "contains", "texts": ["12", "34"]}
    assert judge(expect, said("12 and 34")) == ""
    assert judge(expect, said("12")).endswith("needed also 34")


def test_a_word_passes_among_others_but_not_beside_a_wrong_one() -> None:
    expect = {"kind": "word", "words": ["left"], "wrong": ["right", "top"]}
    assert judge(expect, said("It is on the Left.")) == ""
    assert "found also right" in judge(expect, said("left or right"))
    assert "needed left" in judge(expect, said("leftmost"))


@pytest.mark.parametrize(("content", "finish"), [("hello", "length"), ("", "stop"), ("  ", "stop")])
def test_end_of_turn_needs_text_and_the_finish_reason_stop(content: str, finish: str) -> None:
    assert judge({"kind": "stop"}, Reply("hello", finish="stop")) == ""
    assert judge({"kind": "stop"}, Reply(content, finish=finish))


def test_an_error_of_the_server_fails_every_kind() -> None:
    assert judge({"kind": "exact", "value": ""}, Reply(error="status 500: oops")) == "status 500: oops"


def test_an_unknown_kind_is_a_fault_of_the_fixture() -> None:
    with pytest.raises(KeyError):
        judge({"kind": "vibes"}, said("good"))
