"""Structured outputs and forced calls over HTTP, by the embedded model: what is asked is what comes, or a status before any stream.

The faults of the field that this file is the test of are named by their numbers in the API's own list of them: 17, 68, 76 to 81.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel

from fixtures.fronts import EMBEDDED, TOKENIZER, Front, events, serving, start_embedded
from fixtures.schemas import is_valid
from lockstep.text.toolset import Toolset

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "What is the weather in Bern?"}]
WILD = {"temperature": 1.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "degrees": {"type": "integer", "minimum": -40, "maximum": 50}},
    "required": ["city", "degrees"],
}
WEATHER = {"type": "object", "required": ["city", "days"], "properties": {
    "city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
    "unit": {"enum": ["C", "F"]}, "days_off": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}}}  # fmt: skip
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_weather_now", "parameters": {"type": "object", "properties": {}}}},
]


def json_schema(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    flags = ("--context", "2048", "--parallel", "4", "--drafter", str(EMBEDDED / "drafter"))
    with serving(start_embedded(tmp_path_factory.mktemp("structured"), *flags), 60) as started:
        yield started


def whole(front: Front, **fields: Any) -> dict[str, Any]:
    reply = front.http.post(CHAT, json={"messages": ASK, "max_tokens": 120, "temperature": 0} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def choice(front: Front, **fields: Any) -> dict[str, Any]:
    return whole(front, **fields)["choices"][0]


def text(front: Front, **fields: Any) -> str:
    found = choice(front, **fields)
    assert found["finish_reason"] == "stop", found
    return found["message"]["content"]


def refused(front: Front, **fields: Any) -> dict[str, Any]:
    body = {"messages": ASK, "max_tokens": 20} | fields
    plain, streamed = front.http.post(CHAT, json=body), front.http.post(CHAT, json=body | {"stream": True})
    assert plain.status_code == streamed.status_code == 400, (plain.text, streamed.text)
    assert plain.json() == streamed.json(), "a refused stream is the same refusal (17)"
    assert front.http.post(CHAT, json={"messages": ASK, "max_tokens": 1}).status_code == 200
    return plain.json()["error"]


WAYS = {
    "response_format": {"response_format": json_schema(SCHEMA, strict=True)},
    "structured_outputs": {"structured_outputs": {"json": SCHEMA}},
    "guided_json": {"guided_json": SCHEMA},
    "schema as text": {"guided_json": json.dumps(SCHEMA)},
}


@pytest.mark.parametrize("fields", WAYS.values(), ids=WAYS)
def test_a_schema_is_followed_whichever_field_it_came_in(front: Front, fields: dict[str, Any]):
    for seed in range(3):
        assert is_valid(SCHEMA, text(front, **fields, **WILD, seed=seed))


def test_choices_patterns_and_rules_are_followed(front: Front):
    assert text(front, guided_choice=["yes", 'say "no"']) in ("yes", 'say "no"')
    assert text(front, structured_outputs={"choice": ["red"]}, **WILD) == "red"
    number = text(front, guided_regex="[0-9]{3}-[0-9]{2}", **WILD, seed=1)
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", number)
    assert set(text(front, guided_grammar='root ::= "a" | "b" root', temperature=0.5).rstrip("a")) <= {"b"}
    assert choice(front, structured_outputs={"json_object": True}, max_tokens=8)["message"]["content"].startswith("{")


def test_a_completion_is_constrained_as_a_chat_is(front: Front):
    reply = front.http.post("/v1/completions", json={"prompt": "Answer: ", "guided_choice": ["left", "right"], "max_tokens": 10}).json()
    assert reply["choices"][0]["text"] in ("left", "right")


def test_the_official_client_parses_what_it_asked_for(front: Front):
    class Weather(BaseModel):
        city: str
        degrees: int
        note: str | None

    client = OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0)
    parsed = client.chat.completions.parse(
        model="glm-5.3-flash",
        messages=[{"role": "user", "content": "Weather in Bern as JSON."}],
        response_format=Weather,
        max_tokens=200,
        temperature=0,
    )
    found = parsed.choices[0].message.parsed
    assert isinstance(found, Weather), parsed


def test_streams_choices_and_stop_strings_under_a_grammar(front: Front):
    body = {"messages": ASK, "max_tokens": 120, "response_format": json_schema(SCHEMA), "seed": 3} | WILD
    reply = front.http.post(CHAT, json=body | {"stream": True}).text
    joined = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in events(reply)[:-1])
    assert joined == front.http.post(CHAT, json=body).json()["choices"][0]["message"]["content"]
    both = front.http.post(CHAT, json=body | {"n": 2}).json()["choices"]
    assert [is_valid(SCHEMA, one["message"]["content"]) for one in both] == [True, True]
    assert text(front, response_format=json_schema(SCHEMA), stop=['"degrees"']).startswith('{"city"')


def test_thinking_comes_first_and_the_json_lands_in_the_content(front: Front):
    """80: JSON in the content, thinking as asked, effort none beside a schema."""
    thought = choice(front, response_format=json_schema(SCHEMA), reasoning_effort="high", max_tokens=400)
    assert thought["message"].get("reasoning_content"), thought
    assert is_valid(SCHEMA, thought["message"]["content"])
    quiet = choice(front, response_format=json_schema(SCHEMA), reasoning_effort="none")
    assert "reasoning_content" not in quiet["message"]
    assert is_valid(SCHEMA, quiet["message"]["content"])


def test_a_reply_under_a_grammar_does_not_end_inside_its_reasoning(front: Front):
    for seed in range(4):
        found = choice(
            front, response_format=json_schema(SCHEMA), reasoning_effort="low", thinking_budget=24, seed=seed, max_tokens=200, **WILD
        )
        assert found["finish_reason"] == "stop"
        assert is_valid(SCHEMA, found["message"]["content"])


def test_drafted_is_serial_under_every_grammar(front: Front):
    """78: equal tokens with draft on and off."""
    for fields in (WAYS["response_format"], {"guided_regex": "[a-f]{4,30}!"}, {"tools": TOOLS, "tool_choice": "required"}):
        for sampling in ({"temperature": 0}, WILD | {"seed": 8}):
            drafted, serial = (whole(front, **fields, **sampling, draft=draft)["lockstep"]["token_sha"] for draft in (True, False))
            assert drafted == serial


def test_recursive_and_deep_schemas_work_or_are_refused(front: Front):
    """76."""
    tail = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    node = {"type": "object", "properties": {"v": {"enum": [1, 2]}, "next": tail}, "required": ["v", "next"]}
    linked = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    found = choice(front, response_format=json_schema(linked), max_tokens=300)
    assert found["finish_reason"] == "length" or is_valid(linked, found["message"]["content"])
    deep = reduce(lambda inner, _: {"type": "object", "properties": {"a": inner}, "required": ["a"]}, range(8), {"type": "null"})
    assert is_valid(deep, text(front, response_format=json_schema(deep), max_tokens=400))
    deeper = reduce(lambda inner, _: {"type": "array", "items": inner}, range(80), {"type": "null"})
    assert refused(front, response_format=json_schema(deeper))["param"] == "response_format"


def test_blanks_are_bounded_for_a_model_that_likes_them(front: Front):
    """77: every blank the tokenizer knows is made as likely as can be."""
    blanks = [token for token in range(TOKENIZER.size) if (data := TOKENIZER.token_bytes(token)) and not data.strip()]
    bias = {str(token): 60 for token in blanks}
    found = choice(front, response_format=json_schema(SCHEMA), logit_bias=bias, max_tokens=400)
    assert found["finish_reason"] == "stop", found
    assert is_valid(SCHEMA, found["message"]["content"])
    assert max(len(run) for run in _blank_runs(found["message"]["content"])) <= 32


def _blank_runs(told: str) -> list[str]:
    outside = "".join("x" if place % 2 else piece for place, piece in enumerate(told.split('"')))
    return reduce(lambda runs, one: [*runs, ""] if one.strip() else [*runs[:-1], runs[-1] + one], outside, [""])


UNENFORCEABLE = {
    "multipleOf": {"type": "integer", "multipleOf": 7},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "not": {"not": {"type": "string"}},
    "patternProperties": {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
}


@pytest.mark.parametrize("word", UNENFORCEABLE)
def test_what_cannot_be_enforced_is_refused_by_name_and_place(front: Front, word: str):
    """79."""
    schema = {"type": "object", "properties": {"inner": UNENFORCEABLE[word]}}
    error = refused(front, response_format=json_schema(schema))
    assert f"`{word}` at `response_format.json_schema.schema.properties.inner`" in error["message"]
    assert error["param"] == "response_format"
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert f"`{word}` at `tools[0].function.parameters.properties.inner`" in refused(front, tools=[tool], tool_choice="required")["message"]


def test_an_array_of_objects_is_enforced(front: Front):
    """79."""
    schema = {"type": "array", "items": SCHEMA, "minItems": 1, "maxItems": 2}
    assert is_valid(schema, text(front, response_format=json_schema(schema), seed=2, max_tokens=300, **WILD))


ENDLESS = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}}
FORCED = {"tools": TOOLS, "tool_choice": "required"}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "strict in the wrong place": ({"response_format": json_schema(SCHEMA) | {"strict": True}}, "response_format.strict", "remove it"),
    "strict that is no boolean": ({"response_format": json_schema(SCHEMA, strict="yes")}, "response_format.json_schema.strict", "boolean"),
    "a schema in the wrong place": ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "response_format.schema", "remove it"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    "a type nobody knows": ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    "a text": ({"response_format": "json"}, "response_format", "needed: an object"),
    "two at once": ({"guided_choice": ["a"], "response_format": {"type": "json_object"}}, "response_format", "one of them"),
    "two in one": ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
    "none in one": ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    "a structural tag": ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "remove it"),
    "a grammar that is none": ({"guided_grammar": "root ::= ("}, "guided_grammar", "EBNF"),
    "a pattern that is none": ({"guided_regex": "(a"}, "guided_regex", "parenthesis"),
    "a pattern that looks ahead": ({"guided_regex": "(?=a)b"}, "guided_regex", "Lookahead"),
    "no choice": ({"guided_choice": []}, "guided_choice", "at least 1"),
    "a reply that must not end": ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", "ignore_eos"),
    "a reply of at least so much": ({"guided_choice": ["a"], "min_tokens": 5}, "min_tokens", "min_tokens"),
    "a value that never ends": ({"response_format": json_schema(ENDLESS)}, "response_format", "no value ever ends"),
    "a forced call and a form": (FORCED | {"guided_choice": ["a"]}, "guided_choice", "tool_choice"),
    "a tool that is not offered": ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice", "no"),
    "a call of nothing": ({"tool_choice": "required"}, "tool_choice", "tools"),
    "a choice that is none": ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice", "required"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_followed_is_refused_before_any_stream(front: Front, fields: dict[str, Any], param: str, words: str):
    error = refused(front, **fields)
    assert error["param"] == param, error
    assert words in error["message"], error


def calls_of(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found["message"].get("tool_calls", [])]


def check_call(name: str, arguments: dict[str, Any]) -> None:
    assert name in Toolset(TOOLS)
    if name == "get_weather":
        assert is_valid(WEATHER, json.dumps(arguments)), arguments
    else:
        assert arguments == {}


def test_a_required_call_comes_with_arguments_of_its_schema(front: Front):
    """68: whatever the model would rather say; several choices; cut short it is `length` and no empty list."""
    names = set()
    for seed in range(8):
        found = choice(front, tools=TOOLS, tool_choice="required", seed=seed, max_tokens=300, **WILD)
        assert found["finish_reason"] in ("tool_calls", "length"), found
        assert found["finish_reason"] == "length" or calls_of(found)
        for name, arguments in calls_of(found):
            check_call(name, arguments)
            names.add(name)
    assert names
    for one in whole(front, tools=TOOLS, tool_choice="required", n=2, parallel_tool_calls=False, seed=1, max_tokens=300, **WILD)["choices"]:
        assert one["finish_reason"] == "tool_calls"
        assert len(calls_of(one)) == 1
    cut = choice(front, tools=TOOLS, tool_choice="required", max_tokens=3)
    assert cut["finish_reason"] == "length"
    assert "tool_calls" not in cut["message"]


def test_a_named_tool_is_called_once_and_the_reply_says_so(front: Front):
    """68: a forced call ends with `tool_calls`, also one of a named tool."""
    for name in ("get_weather", "get_weather_now"):
        for form in ({"type": "function", "function": {"name": name}}, {"type": "function", "name": name}):
            found = choice(front, tools=TOOLS, tool_choice=form, seed=4, max_tokens=300, **WILD)
            assert found["finish_reason"] == "tool_calls"
            [(called, arguments)] = calls_of(found)
            assert called == name
            check_call(called, arguments)


def test_beside_a_forced_call_the_form_of_texts_says_nothing(front: Front):
    """Helpers of clients send both."""
    for choice_of_tool in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        body = {"tools": TOOLS, "tool_choice": choice_of_tool, "seed": 4, "max_tokens": 300, **WILD}
        assert choice(front, response_format=json_schema(SCHEMA), **body) == choice(front, **body)


def test_a_forced_call_comes_behind_the_reasoning_and_streams_whole(front: Front):
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "reasoning_effort": "high", "max_tokens": 400, "temperature": 0}
    found = choice(front, **body)
    assert found["message"].get("reasoning_content")
    assert "<tool_call>" not in found["message"]["reasoning_content"]
    assert calls_of(found)
    chunks = [chunk["choices"][0] for chunk in events(front.http.post(CHAT, json=body | {"stream": True}).text)[:-1]]
    told = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", ())]
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in told] == calls_of(found)
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_beside_offered_tools_a_form_allows_either(front: Front):
    opening = TOKENIZER.added["<tool_call>"]
    fields = {"tools": TOOLS, "response_format": json_schema(SCHEMA), "max_tokens": 300, **WILD}
    for seed in range(3):
        # Left to itself this model calls.
        found = choice(front, seed=seed, **fields)
        assert calls_of(found)
        assert not found["message"]["content"]
        for name, arguments in calls_of(found):
            check_call(name, arguments)
        found = choice(front, seed=seed, logit_bias={str(opening): -100}, **fields)
        assert not calls_of(found)
        assert is_valid(SCHEMA, found["message"]["content"])


def test_no_tools_means_no_call(front: Front):
    found = choice(front, tools=TOOLS, tool_choice="none", response_format=json_schema(SCHEMA))
    assert not calls_of(found)
    assert is_valid(SCHEMA, found["message"]["content"])


def test_a_tool_that_is_not_strict_takes_what_its_schema_cannot_enforce(front: Front):
    loose = {"name": "f", "strict": False, "parameters": {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}}}
    found = choice(front, tools=[{"type": "function", "function": loose}], tool_choice="required", max_tokens=200)
    assert found["finish_reason"] in ("tool_calls", "length")


def test_a_strict_tool_is_held_to_its_schema_when_the_model_is_free_to_call_it(front: Front):
    """Text stays free, a call does not: biases make the model call, and want a number that its schema has not."""
    strict = {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": {"enum": [17]}}, "required": ["a"]}}
    tools = [{"type": "function", "function": strict}, {"type": "function", "function": {"name": "free"}}]
    bias = {str(TOKENIZER.added["<tool_call>"]): 30}
    assert choice(front, tools=tools, logit_bias=dict.fromkeys(bias, -100), max_tokens=12)["message"]["content"]
    called = {}
    for seed in range(6):
        for draft in (True, False):
            found = whole(front, tools=tools, logit_bias=bias, parallel_tool_calls=False, seed=seed, max_tokens=60, draft=draft, **WILD)
            for name, arguments in calls_of(found["choices"][0]):
                assert name == "free" or arguments == {"a": 17}
                called[name] = called.get(name, 0) + 1
            assert called.setdefault(seed, found["lockstep"]["token_sha"]) == found["lockstep"]["token_sha"]
    assert called.get("f")
    bad = strict | {"parameters": {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}}}
    assert "multipleOf" in refused(front, tools=[{"type": "function", "function": bad}])["message"]


def test_the_opening_brace_comes_once(front: Front):
    """81: JSON that the conversation has begun already is not begun again, and JSON of its own parses."""
    found = text(front, response_format=json_schema(SCHEMA))
    assert found.count("{") == 1
    assert json.loads(found)
    begun = [*ASK, {"role": "assistant", "content": "{"}]
    assert json.loads(text(front, messages=begun, response_format=json_schema(SCHEMA)))


def test_a_loop_ends_at_the_same_token_with_and_without_drafts(front: Front):
    body = {"logit_bias": {"46": 100}, "max_tokens": 400, "return_token_ids": True}
    drafted, serial = (whole(front, draft=draft, **body) for draft in (True, False))
    assert drafted["lockstep"]["token_ids"] == serial["lockstep"]["token_ids"] == [46] * 256
    assert drafted["lockstep"]["loop_tokens"] == serial["lockstep"]["loop_tokens"] == 1
    assert drafted["lockstep"]["rounds"] < serial["lockstep"]["rounds"]
    assert drafted["choices"] == serial["choices"]
    assert drafted["choices"][0]["finish_reason"] == "length"
