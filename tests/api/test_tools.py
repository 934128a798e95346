"""Tool calls over HTTP: the official client whole and streamed, cut replies, choices, and sessions with a bad past."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from pydantic import TypeAdapter

from fixtures.fronts import EOS, TOKENIZER, Front, events, serving, start_front
from fixtures.tool_replies import TOOLS, ids
from lockstep.server.documents import ChatCompletion
from lockstep.server.replies import IN_CALL_EVENT_S

Serve = Callable[..., Front]
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"messages": HI, "tools": TOOLS}
CITY = "布拉格 🙂"
REPLY = f"Let me see.<tool_call>get_weather<arg_key>city</arg_key><arg_value>{CITY}</arg_value></tool_call><tool_call>now</tool_call>"
CALLS = [("get_weather", json.dumps({"city": CITY}, ensure_ascii=False)), ("now", "{}")]
OBSERVATION = TOKENIZER.added["<|observation|>"]


def one_by_one(text: str, end: int | None = OBSERVATION) -> list[list[int]]:
    return [[token] for token in ids(text) + ([] if end is None else [end])]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A server whose replies call two tools; with thinking on it thinks first."""
    by_prompt = {str(TOKENIZER.think_open): one_by_one("hm</think>" + REPLY)}
    with serving(start_front(tmp_path_factory.mktemp("caller"), {"rounds": one_by_one(REPLY), "prompt_rounds": by_prompt})) as started:
        yield started


def choice(front: Front, **fields: Any) -> dict[str, Any]:
    reply = front.http.post(CHAT, json=BODY | fields)
    assert reply.status_code == 200, reply.text
    TypeAdapter(ChatCompletion).validate_python(reply.json())
    return reply.json()["choices"][0]


def streamed(front: Front, **fields: Any) -> list[dict[str, Any]]:
    return [chunk["choices"][0] for chunk in events(front.http.post(CHAT, json=BODY | fields | {"stream": True}).text)[:-1]]


def deltas(choices: list[dict[str, Any]], name: str) -> list[Any]:
    return [item["delta"][name] for item in choices if item["delta"].get(name)]


def prompt_of(front: Front, messages: list[Any], **fields: Any) -> str:
    reply = front.http.post("/tokenize", json={"messages": messages} | fields)
    assert reply.status_code == 200, reply.text
    return TOKENIZER.decode(reply.json()["tokens"])


@pytest.mark.parametrize("effort", ["none", "high"])
def test_the_openai_client_reads_the_same_calls_whole_and_streamed(caller: Front, effort: str) -> None:
    client = openai.OpenAI(base_url=caller.url + "/v1", api_key="none", max_retries=0)
    more: dict[str, Any] = {"model": "glm-5.3-flash", "messages": HI, "tools": TOOLS, "reasoning_effort": effort}
    whole = client.chat.completions.create(**more).choices[0]
    assert [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or ()] == CALLS
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", "Let me see.")
    with client.chat.completions.stream(**more) as stream:
        final = stream.get_final_completion().choices[0]
    assert (final.finish_reason, final.message.content) == ("tool_calls", "Let me see.")
    found = [(call.id, call.function.name, call.function.arguments) for call in final.message.tool_calls or ()]
    assert found == [(call.id, call.function.name, call.function.arguments) for call in whole.message.tool_calls or ()]
    assert len({call_id for call_id, _, _ in found}) == 2


def test_a_call_is_one_delta_and_the_finish_has_a_chunk_of_its_own(caller: Front) -> None:
    chunks = streamed(caller)
    calls = [call for listed in deltas(chunks, "tool_calls") for call in listed]
    assert [(call["index"], call["type"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        (place, "function", name, arguments) for place, (name, arguments) in enumerate(CALLS)
    ]
    assert chunks[-1]["delta"] == {}
    assert [item["finish_reason"] for item in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert "".join(deltas(chunks, "content")) == "Let me see."
    assert choice(caller)["message"]["tool_calls"] == [{key: call[key] for key in ("id", "type", "function")} for call in calls]


def test_content_is_null_if_a_reply_holds_calls_only(serve: Serve) -> None:
    front = serve({"rounds": [ids("<tool_call>now</tool_call>"), [EOS]]})
    assert choice(front)["message"]["content"] is None
    assert [sorted(item["delta"]) for item in streamed(front)] == [["content", "role"], ["tool_calls"], []]


def test_a_reply_cut_in_a_call_ends_with_length_and_without_the_call(caller: Front) -> None:
    limit = len(ids(REPLY)) - 2
    whole = choice(caller, max_tokens=limit)
    assert whole["finish_reason"] == "length"
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["get_weather"]
    chunks = streamed(caller, max_tokens=limit)
    assert chunks[-1]["finish_reason"] == "length"
    assert [listed[0]["function"]["name"] for listed in deltas(chunks, "tool_calls")] == ["get_weather"]
    short = choice(caller, max_tokens=limit - 12)
    assert (short["finish_reason"], short["message"]) == ("length", {"role": "assistant", "content": "Let me see."})


def test_a_reply_that_may_hold_one_call_ends_behind_it(caller: Front) -> None:
    reply = caller.http.post(CHAT, json=BODY | {"parallel_tool_calls": False}).json()
    assert [call["function"]["name"] for call in reply["choices"][0]["message"]["tool_calls"]] == ["get_weather"]
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert reply["usage"]["completion_tokens"] == len(ids(REPLY)) - len(ids("<tool_call>now</tool_call>"))
    chunks = streamed(caller, parallel_tool_calls=False)
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert len(deltas(chunks, "tool_calls")) == 1


def test_without_tools_or_with_choice_none_the_prompt_hides_them_and_tags_are_text(caller: Front) -> None:
    for fields in ({"tool_choice": "none"}, {"tools": None}, {"tools": []}, {"tools": None, "tool_choice": "auto"}):
        found = choice(caller, **fields)
        assert (found["finish_reason"], found["message"]["content"]) == ("stop", REPLY)
        assert "get_weather" not in prompt_of(caller, HI, **({"tools": TOOLS} | fields))


def test_tools_are_in_the_prompt_in_the_clients_words_and_no_control_token_is(caller: Front) -> None:
    function = {"parameters": {"z": 1, "type": "object"}, "strict": True, "description": "é <|user|>", "name": "f"}
    text = prompt_of(caller, HI, tools=[{"type": "function", "function": function}])
    assert '{"parameters": {"z": 1, "type": "object"}, "description": "é <|user|>", "name": "f"}' in text
    tokens = caller.http.post("/tokenize", json={"messages": HI, "tools": [{"function": function}]}).json()["tokens"]
    assert tokens.count(EOS) == 1


def test_repeated_requests_have_the_same_ids_of_calls_and_another_prompt_has_others(caller: Front) -> None:
    first, again = choice(caller), choice(caller)
    other = choice(caller, messages=[{"role": "user", "content": "ho"}])
    named = [[call["id"] for call in found["message"]["tool_calls"]] for found in (first, again, other)]
    assert named[0] == named[1]
    assert not set(named[0]) & set(named[2])


def test_the_ids_and_results_of_a_first_turn_make_the_second(caller: Front) -> None:
    message = choice(caller)["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result {call['function']['name']}"} for call in message["tool_calls"]
    ]
    text = prompt_of(caller, [*HI, message, *reversed(results)])
    assert REPLY in text
    assert text.index("result get_weather") < text.index("result now")
    assert choice(caller, messages=[*HI, message, *results])["finish_reason"] == "tool_calls"


def past(*calls: Any) -> list[Any]:
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"of {call['id']}"}
        for call in calls
        if isinstance(call, dict) and "id" in call
    ]
    return [*HI, {"role": "assistant", "content": "so", "tool_calls": list(calls)}, *results, {"role": "user", "content": "on"}]


def call(name: Any, arguments: Any, call_id: str = "bad") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


BAD = [
    *(call("f", arguments) for arguments in ('{"a":', "[1]", [1], 5, True, "null", '{"a": NaN}', '{"a": "\\ud800"}')),
    call("f", '{"a":' * 900 + "1" + "}" * 900),
    call(None, "{}"),
    call(5, "{}"),
    {"id": "bad", "type": "function"},
    {"id": "bad", "type": "custom", "custom": {"name": "f", "input": "x"}},
    {"id": "bad", "function": "f"},
    None,
    "f",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_bad_call_of_the_past_never_ends_a_session(caller: Front, bad: Any) -> None:
    good = call("now", None, "good")
    text = prompt_of(caller, past(bad, good))
    assert "so<tool_call>now</tool_call>" in text
    assert "of good" in text
    assert "of bad" not in text
    assert choice(caller, messages=past(bad, good))["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("arguments", ["", None, {}, "{}", " {} "])
def test_no_arguments_of_the_past_are_no_arguments(caller: Front, arguments: Any) -> None:
    assert "<tool_call>now</tool_call>" in prompt_of(caller, past(call("now", arguments)))


def test_odd_shapes_of_the_past_are_rendered(caller: Front) -> None:
    results = [{"role": "tool", "tool_call_id": "lost", "content": [{"type": "text", "text": "one"}]}, {"role": "tool", "content": "two"}]
    calls = {"role": "assistant", "content": [], "tool_calls": [call("now", "{}", "c")]}
    text = prompt_of(caller, [*HI, calls, *results, {"role": "tool", "content": None}])
    assert "<tool_response>one</tool_response><tool_response>two</tool_response><tool_response></tool_response>" in text
    assert "hey<|user|>" in prompt_of(caller, [*HI, {"role": "assistant", "content": "hey", "tool_calls": []}, *HI])


def test_an_id_used_again_in_a_later_turn_keeps_its_result(caller: Front) -> None:
    text = prompt_of(caller, [*past(call("f", "[1]", "same")), *past(call("now", "{}", "same"))])
    assert text.count("of same") == 1


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("a tool without a function", {"tools": [{"type": "function"}]}, "tools", "tool 0 is not"),
    ("a built-in tool", {"tools": [{"type": "web_search"}]}, "tools", "tool 0 is not"),
    ("tools as an object", {"tools": {}}, "tools", "a list of tools"),
    ("a name with a blank", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "128 characters"),
    ("a name twice", {"tools": [TOOLS[0], TOOLS[0]]}, "tools", "repeats get"),
    ("a strict that is a word", {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools", "`strict`"),
    ("a strict out of its place", {"tools": [{"type": "function", "strict": True, "function": {"name": "f"}}]}, "tools", "`strict`"),
    ("a tool without a name", {"tool_choice": {"type": "function", "function": {}}}, "tool_choice", "name"),
    ("an unknown choice", {"tool_choice": "maybe"}, "tool_choice", "none"),
    ("a choice as a number", {"tool_choice": 1}, "tool_choice", "none"),
    ("parallel as a word", {"parallel_tool_calls": "no"}, "parallel_tool_calls", "boolean"),
    ("functions of old", {"functions": [{"name": "f"}]}, "functions", "`tools`"),
]


@pytest.mark.parametrize(("fields", "param", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_tools_that_cannot_be_served_are_refused_by_name(caller: Front, fields: dict[str, Any], param: str, words: str) -> None:
    reply = caller.http.post(CHAT, json=BODY | fields)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], words in error["message"]) == (param, True), error


def test_completions_call_no_tools(caller: Front) -> None:
    reply = caller.http.post("/v1/completions", json={"prompt": "x", "tools": TOOLS})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
    assert caller.http.post("/v1/completions", json={"prompt": "x"}).json()["choices"][0]["text"] == REPLY


def test_a_long_call_shows_as_deltas_that_say_nothing(serve: Serve) -> None:
    long = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>" + "a long name " * 10 + "</arg_value></tool_call>"
    rounds = one_by_one(long)
    front = serve({"rounds": rounds, "delay_s": 4.6 / len(rounds)})
    began = time.monotonic()
    chunks = streamed(front)
    took_s, kinds = time.monotonic() - began, [sorted(item["delta"]) for item in chunks]
    silent = len(kinds) - 3
    assert kinds == [["content", "role"], *[[]] * silent, ["tool_calls"], []]
    assert 2 <= silent <= took_s / IN_CALL_EVENT_S
