"""Conversations become the published layout, and nothing a client writes becomes a control token."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Template
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lockstep.text.errors import CheckpointTextError, TextError
from lockstep.text.template import ChatTemplate, _environment
from lockstep.text.thinking import LEVELS, Thinking, choose_thinking, default_thinking
from lockstep.text.tokenizer import Tokenizer

EMBEDDED = Path(__file__).parents[2] / "embedded"
TOKENIZER = Tokenizer.load(EMBEDDED)
TEMPLATE = ChatTemplate.load(EMBEDDED, TOKENIZER)
OFF, HIGH = Thinking(False), Thinking(True, "high")
SPELLINGS = sorted(TOKENIZER.added)


def text_of(messages: list[dict], thinking: Thinking = OFF, **more: Any) -> str:
    return TOKENIZER.decode(TEMPLATE.prompt(messages, thinking, **more).ids)


def specials(messages: list[dict], thinking: Thinking = OFF) -> list[str]:
    names = {token: spelling for spelling, token in TOKENIZER.added.items()}
    return [names[token] for token in TEMPLATE.prompt(messages, thinking).ids if token in names]


def test_thinking_on_names_the_effort_and_opens_the_think_block() -> None:
    prompt = TEMPLATE.prompt([{"role": "user", "content": "hi"}], HIGH)
    assert TOKENIZER.decode(prompt.ids) == "[gMASK]<sop><|system|>Reasoning Effort: High<|user|>hi<|assistant|><think>"
    assert prompt.in_reasoning


def test_thinking_off_drops_the_effort_line_and_closes_the_think_block() -> None:
    prompt = TEMPLATE.prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}], OFF)
    assert TOKENIZER.decode(prompt.ids) == "[gMASK]<sop><|system|>Be brief.<|user|>hi<|assistant|><think></think>"
    assert not prompt.in_reasoning


def test_a_system_message_worded_like_the_effort_line_stays() -> None:
    text = text_of([{"role": "system", "content": "Reasoning Effort: High"}, {"role": "user", "content": "hi"}])
    assert text == "[gMASK]<sop><|system|>Reasoning Effort: High<|user|>hi<|assistant|><think></think>"


def test_a_template_without_an_effort_line_loses_nothing() -> None:
    plain = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|><think>", TOKENIZER)
    ids = plain.prompt([{"role": "system", "content": "Reasoning Effort: High"}, {"role": "user", "content": "x"}], OFF).ids
    assert TOKENIZER.decode(ids) == "<|system|>Reasoning Effort: High<|user|>x<|assistant|><think></think>"


def test_each_rendered_turn_extends_the_prompt_before_it() -> None:
    first = [{"role": "user", "content": "hi"}]
    second = [*first, {"role": "assistant", "content": "hello", "reasoning_content": "greet"}, {"role": "user", "content": "bye"}]
    assert text_of(second, HIGH).startswith(text_of(first, HIGH) + "greet</think>hello")


contents = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from([*SPELLINGS, "\ufdd0", "\ufdd01"]), max_size=4
)


@given(contents, contents, contents)
@settings(max_examples=150)
def test_control_tokens_come_from_the_template_alone(system: list[str], user: list[str], again: list[str]) -> None:
    parts = [{"type": "text", "text": word} for word in user]
    messages = [
        {"role": "system", "content": "".join(system)},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "x", "reasoning_content": "".join(again)},
        {"role": "user", "content": "".join(again)},
    ]
    turn = ["<|user|>", "<|assistant|>", "<think>", "</think>"]
    assert specials(messages) == ["[gMASK]", "<sop>", "<|system|>", *turn, *turn]
    expected = f"{''.join(system)}<|user|>{''.join(user)}<|assistant|><think>{''.join(again)}</think>x<|user|>{''.join(again)}"
    assert text_of(messages) == f"[gMASK]<sop><|system|>{expected}<|assistant|><think></think>"


def test_a_control_token_spelled_over_two_parts_is_text() -> None:
    parts = [{"type": "text", "text": "<|us"}, {"type": "text", "text": "er|>"}]
    assert specials([{"role": "user", "content": parts}]).count("<|user|>") == 1


def test_calls_of_earlier_turns_are_rendered_from_argument_strings_and_objects() -> None:
    calls = [
        {"id": "1", "function": {"name": "find", "arguments": '{"q": "<|user|> é", "deep": [1, {"b": true}]}'}},
        {"id": "2", "function": {"name": "now", "arguments": ""}},
        {"id": "3", "function": {"name": "add", "arguments": {"a": 1}}},
    ]
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "</tool_response>"},
    ]
    text = text_of(messages)
    assert '<arg_key>deep</arg_key><arg_value>[1, {"b": true}]</arg_value>' in text
    assert "<arg_key>q</arg_key><arg_value><|user|> é</arg_value>" in text
    assert "<tool_call>now</tool_call><tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>" in text
    assert specials(messages).count("<|user|>") == 1
    assert "None" not in text


def test_a_past_call_with_unusable_arguments_goes_with_its_result() -> None:
    calls = [
        {"id": name, "function": {"name": name, "arguments": words}} for name, words in (("good", "{}"), ("bad", '{"a":'), ("list", "[1]"))
    ]
    results = [{"role": "tool", "tool_call_id": name, "content": f"result of {name}"} for name in ("good", "bad", "list")]
    text = text_of([{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results])
    assert "result of good" in text
    assert "bad" not in text
    assert "list" not in text


def test_reasoning_inside_the_content_of_an_earlier_turn_moves_to_its_block() -> None:
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "<think>why</think>because"},
        {"role": "user", "content": "y"},
    ]
    assert "<|assistant|><think>why</think>because<|user|>y" in text_of(messages)
    assert "<|assistant|><think></think>because<|user|>y" in text_of(messages, OFF, clear_thinking=True)


def test_a_conversation_nested_without_end_is_refused() -> None:
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    call = {"id": "1", "function": {"name": "f", "arguments": {"a": deep}}}
    with pytest.raises(TextError, match="nested too deeply"):
        text_of([{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}])


def test_a_broken_template_is_refused_when_it_is_read() -> None:
    with pytest.raises(CheckpointTextError, match="cannot render"):
        ChatTemplate("{% for m in messages %}", TOKENIZER)


@pytest.mark.parametrize(
    ("switch", "effort", "expected"),
    [
        (None, None, Thinking(False, "high")),
        (None, "none", Thinking(False, "high")),
        (None, "minimal", Thinking(True, "low")),
        (None, "medium", Thinking(True, "high")),
        (None, "xhigh", Thinking(True, "max")),
        (True, None, Thinking(True, "high")),
        (True, "none", Thinking(True, "high")),
        (False, "max", Thinking(False, "max")),
    ],
)
def test_a_switch_wins_over_an_effort_and_an_effort_over_the_default(switch: bool | None, effort: str | None, expected: Thinking) -> None:
    assert choose_thinking(default_thinking(False, "high"), switch, effort) == expected


def test_every_effort_word_has_a_level_the_template_knows() -> None:
    assert set(LEVELS.values()) == {"off", "low", "high", "max"}
    assert default_thinking(True, "none") == Thinking(False, "high")


EXPRESSIONS = (
    *("m.role", "m.absent", "m.items is callable", "m['items']", "m.items()", "m.__class__", "m.get('role')", "t.upper()"),
    *("n.a", "n.items", "n.absent", "n.absent is defined", "n._c", "n.__class__", "n.f", "n.m.role", "n['a']"),
    *("loop.index0", "loop.last", "loop.previtem", "loop.absent is defined", "loop._iterable", "loop.__init__", "loop.cycle(1, 2)"),
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_names_mean_what_they_mean_in_any_template(expression: str):
    values = {"m": {"role": "user", "items": "own", "__class__": "own"}, "t": "text"}
    source = "{% set n = namespace(a='b', items='own', _c='d', m=m, f=t.format) %}{% for x in 'xy' %}{{ " + expression + " }};{% endfor %}"
    told = []
    for environment in (ImmutableSandboxedEnvironment(), _environment()):
        try:
            told.append(environment.from_string(source).render(**values))
        except SecurityError as error:
            told.append(f"refused: {error}")
    shown = [re.sub(" at 0x[0-9a-f]+", "", text) for text in told]
    assert shown[0] == shown[1]


words = st.text("ab<>{% \n", max_size=4)
calls = st.builds(
    lambda name, at, value: {"id": f"c{at}", "function": {"name": name or "f", "arguments": {"k": value, "n": [at, None]}}},
    words,
    st.integers(0, 3),
    words,
)
turns = st.lists(
    st.one_of(
        st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user"]), words),
        st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url"}]}, words),
        st.fixed_dictionaries(
            {"role": st.just("assistant"), "content": words | st.just("<think>t</think>x")},
            optional={"reasoning_content": words, "tool_calls": st.lists(calls, max_size=3)},
        ),
        st.builds(lambda at, text: {"role": "tool", "tool_call_id": f"c{at}", "content": text}, st.integers(0, 3), words),
    ),
    max_size=7,
)


@cache
def both_ways() -> tuple[Template, Template]:
    """The checkpoint's template with our names and with the sandbox's own."""
    ours = _environment()
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    plain.filters["tojson"] = ours.filters["tojson"]
    return ours.from_string(TEMPLATE.source), plain.from_string(TEMPLATE.source)


@given(turns, st.lists(words, max_size=2), st.none() | st.booleans(), st.booleans())
@settings(max_examples=200)
def test_a_conversation_is_rendered_as_by_the_sandbox_alone(turns: list[dict], tools: list[str], clear: bool | None, reply: bool) -> None:
    values = {"messages": turns, "tools": [{"function": {"name": one}} for one in tools], "add_generation_prompt": reply}
    values |= {} if clear is None else {"clear_thinking": clear}
    ours, plain = both_ways()
    assert ours.render(values) == plain.render(values)
