"""Requests that cannot be served get a 4xx that says what to change, and the server goes on."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.fronts import TOKENIZER, Front
from fixtures.waiting import wait_until
from lockstep.server.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from lockstep.server.unsupported import UNSUPPORTED

CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
HI = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": HI} | fields).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": "hi"} | fields).encode()


def raw(text: str) -> bytes:
    return ('{"messages": [{"role": "user", "content": "hi"}], ' + text + "}").encode()


def messages(value: Any) -> bytes:
    return json.dumps({"messages": value}).encode()


WINDOW = "This model's maximum context length is 4096 tokens. However, you requested"

CASES: list[tuple[str, str, bytes, int, str | None, str]] = [
    ("no body", CHAT, b"", 400, None, "empty"),
    ("half a JSON", CHAT, b'{"messages": [', 400, None, "line 1"),
    ("a JSON list", CHAT, b"[1]", 400, None, "needed: an object"),
    ("a JSON string", CHAT, b'"hi"', 400, None, "needed: an object"),
    ("not UTF-8", CHAT, b'{"messages": "\xff"}', 400, None, "UTF-8"),
    ("UTF-16", CHAT, chat().decode().encode("utf-16"), 400, None, "UTF-8"),
    ("a byte order mark", CHAT, b"\xef\xbb\xbf" + chat(), 400, None, "needed: one JSON object"),
    ("a key twice", CHAT, raw('"seed": 1, "seed": 2'), 400, None, "twice"),
    ("NaN", CHAT, raw('"temperature": NaN'), 400, None, "finite"),
    ("Infinity", CHAT, raw('"top_p": Infinity'), 400, None, "finite"),
    ("a number past float", CHAT, raw('"temperature": 1e999'), 400, "temperature", "finite"),
    ("a number past float where nobody looks", CHAT, raw('"metadata": {"a": [-1e999]}'), 400, None, "-1e999"),
    ("a number past float in a schema", CHAT, raw('"guided_json": {"const": 1e999}'), 400, None, "finite"),
    ("a number past float in a schema as text", CHAT, chat(guided_json='{"const": 1e999}'), 400, "guided_json", "JSON Schema"),
    ("a schema as text without end", CHAT, chat(guided_json="[" * 100_000), 400, "guided_json", "JSON Schema"),
    ("ten thousand digits", CHAT, raw('"seed": ' + "9" * 10_000), 400, None, "number"),
    ("forty digits", CHAT, raw('"max_tokens": ' + "9" * 40), 400, "max_tokens", "more than 30 digits"),
    ("nested without end", CHAT, raw('"metadata": ' + "[" * 100_000 + "]" * 100_000), 400, None, "levels"),
    ("nested past the bound", CHAT, raw('"metadata": ' + "[" * 150 + "]" * 150), 400, None, "100 levels"),
    ("a lone surrogate", CHAT, raw('"user": "\\ud800"'), 400, None, "surrogate"),
    ("no messages", CHAT, b"{}", 400, "messages", "missing"),
    ("empty messages", CHAT, messages([]), 400, "messages", "at least 1"),
    ("null messages", CHAT, messages(None), 400, "messages", "list"),
    ("messages as an object", CHAT, messages({}), 400, "messages", "list"),
    ("a null message", CHAT, messages([None]), 400, "messages[0]", "needed"),
    ("a string message", CHAT, messages(["hi"]), 400, "messages[0]", "needed"),
    ("an unknown role", CHAT, messages([{"role": "robot", "content": "x"}]), 400, "messages[0].role", "'user'"),
    ("no role", CHAT, messages([{"content": "x"}]), 400, "messages[0].role", "missing"),
    ("content as a number", CHAT, messages([{"role": "user", "content": 5}]), 400, "messages[0].content", "text parts"),
    ("content missing", CHAT, messages([{"role": "user"}]), 400, "messages[0]", "content"),
    ("a picture", CHAT, messages([{"role": "user", "content": [{"type": "image_url"}]}]), 400, "messages[0].content", "part 0"),
    ("a part that names itself at length", CHAT,
     messages([{"role": "user", "content": [{"type": "image_url", "image_url": "data:", "place": "x" * 500}]}]),
     400, "messages[0].content", "at most 200 characters"),
    ("a part without text", CHAT, messages([{"role": "user", "content": [{"type": "text"}]}]), 400, "messages[0].content", "part 0"),
    ("an unknown model", CHAT, chat(model="gpt-4"), 404, "model", "glm-5.3-flash"),
    ("a model as a number", CHAT, chat(model=5), 400, "model", "string"),
    ("a truthy stream", CHAT, chat(stream="false"), 400, "stream", "boolean"),
    ("a truthy include_usage", CHAT, chat(stream_options={"include_usage": "yes"}), 400, "stream_options.include_usage", "boolean"),
    ("a bool temperature", CHAT, chat(temperature=True), 400, "temperature", "number"),
    ("a string temperature", CHAT, chat(temperature="hot"), 400, "temperature", "number"),
    ("a negative temperature", CHAT, chat(temperature=-1), 400, "temperature", "greater than or equal to 0"),
    ("top_p past one", CHAT, chat(top_p=1.5), 400, "top_p", "less than or equal to 1"),
    ("min_p below zero", CHAT, chat(min_p=-0.1), 400, "min_p", "greater"),
    ("a fractional top_k", CHAT, chat(top_k=1.5), 400, "top_k", "integer"),
    ("a bool max_tokens", CHAT, chat(max_tokens=True), 400, "max_tokens", "integer"),
    ("negative max_tokens", CHAT, chat(max_tokens=-1), 400, "max_tokens", "greater"),
    ("max_tokens of 2^63", CHAT, chat(max_tokens=2**63), 400, "max_tokens", "less"),
    ("a seed of 2^63", CHAT, chat(seed=2**63), 400, "seed", "less"),
    ("a seed below int64", CHAT, chat(seed=-(2**63) - 1), 400, "seed", "greater"),
    ("a fractional seed", CHAT, chat(seed=1.5), 400, "seed", "integer"),
    ("an empty stop", CHAT, chat(stop=""), 400, "stop", "empty"),
    ("an empty stop among others", CHAT, chat(stop=["a", ""]), 400, "stop", "empty"),
    ("seventeen stops", CHAT, chat(stop=["a"] * 17), 400, "stop", "at most 16"),
    ("stop ids past the vocabulary", CHAT, chat(stop_token_ids=[TOKENIZER.size]), 400, "stop_token_ids", "vocabulary"),
    ("stop ids of 2^31", CHAT, chat(stop_token_ids=[2**31]), 400, "stop_token_ids[0]", "less"),
    ("negative stop ids", CHAT, chat(stop_token_ids=[-1]), 400, "stop_token_ids[0]", "greater"),
    ("more min_tokens than max_tokens", CHAT, chat(min_tokens=9, max_tokens=8), 400, "min_tokens", "no more"),
    ("no choice", CHAT, chat(n=0, stream=True), 400, "n", "greater than or equal to 1"),
    ("a negative number of choices", CHAT, chat(n=-1, stream=True), 400, "n", "greater than or equal to 1"),
    ("a million choices", CHAT, chat(n=10**6, stream=True), 400, "n", "less than or equal to 16"),
    ("alternatives without logprobs", CHAT, chat(top_logprobs=3), 400, None, "`logprobs` true"),
    ("too many alternatives", CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "20"),
    ("a number for logprobs of chat", CHAT, chat(logprobs=1), 400, "logprobs", "boolean"),
    ("a penalty out of bounds", CHAT, chat(presence_penalty=2.5), 400, "presence_penalty", "2"),
    ("a repetition penalty of nothing", CHAT, chat(repetition_penalty=0), 400, "repetition_penalty", "0.01"),
    ("a bias past the vocabulary", CHAT, chat(logit_bias={"191222222": 5}), 400, "logit_bias", "vocabulary"),
    ("a bias of a negative id", CHAT, chat(logit_bias={"-1": 1}), 400, "logit_bias", "by token id"),
    ("a bias of a word", CHAT, chat(logit_bias={"abc": 1}), 400, "logit_bias", "by token id"),
    ("a bias out of bounds", CHAT, chat(logit_bias={"1": 101}), 400, "logit_bias", "-100 to 100"),
    ("a bias of many ids", CHAT, chat(logit_bias=dict.fromkeys(map(str, range(10**5)), 1)), 400, "logit_bias", "at most 1024"),
    ("going on with a user's message", CHAT, chat(continue_final_message=True), 400, None, "role assistant"),
    ("echo of a chat", CHAT, chat(echo=True), 400, "echo", "/v1/completions"),
    ("best of many", COMPLETIONS, completion(best_of=3), 400, "best_of", "leave it out"),
    ("logprobs that are a switch", COMPLETIONS, completion(logprobs=True), 400, "logprobs", "integer"),
    ("a tool without a function", CHAT, chat(tools=[{"type": "function"}]), 400, "tools", "tool 0 is not"),
    ("a template", CHAT, chat(chat_template="{{ 1 }}"), 400, "chat_template", "own template"),
    ("unknown template options", CHAT, chat(chat_template_kwargs={"tokenize": False}), 400, "chat_template_kwargs.tokenize", "remove"),
    ("an unknown effort", CHAT, chat(reasoning_effort="huge"), 400, "reasoning_effort", "'medium'"),
    ("thinking as a word", CHAT, chat(thinking="yes"), 400, "thinking", "disabled"),
    ("a prompt past the window", CHAT, messages([{"role": "user", "content": "1 " * 5000}]), 400, "messages", WINDOW),
    ("a prompt far past the window", CHAT, messages([{"role": "user", "content": "1 " * 500_000}]), 400, "messages", WINDOW + " more than"),
    ("a text far past the window", COMPLETIONS, completion(prompt="1 " * 500_000), 400, "prompt", WINDOW + " more than"),
    ("a text too long to count", TOKENIZE, completion(prompt="1 " * 2_200_000), 400, "prompt", "needed: at most 1048576. Shorten"),
    ("a reply past the window", CHAT, chat(max_tokens=4096), 400, "messages", " in the messages, 4096 in the completion)"),
    ("no prompt", COMPLETIONS, b"{}", 400, "prompt", "missing"),
    ("an empty prompt", COMPLETIONS, completion(prompt=""), 400, "prompt", "at least one"),
    ("no ids", COMPLETIONS, completion(prompt=[]), 400, "prompt", "at least one"),
    ("a list of no ids", COMPLETIONS, completion(prompt=[[]]), 400, "prompt", "at least one"),
    ("an empty one of two prompts", COMPLETIONS, completion(prompt=["a", ""]), 400, "prompt", "at least one"),
    ("ids past the vocabulary", COMPLETIONS, completion(prompt=[TOKENIZER.size]), 400, "prompt", f"0 to {TOKENIZER.size - 1}"),
    ("ids past int32", COMPLETIONS, completion(prompt=[5279552648203111001]), 400, "prompt", "vocabulary"),
    ("negative ids", COMPLETIONS, completion(prompt=[-1]), 400, "prompt", "id -1"),
    ("bool ids", COMPLETIONS, completion(prompt=[True]), 400, "prompt", "token ids"),
    ("a thinking budget without thoughts", COMPLETIONS, completion(thinking_budget=5), 400, "thinking_budget", "chat"),
    ("a prompt of ids past the window", COMPLETIONS, completion(prompt=[40] * 4096), 400, "prompt", "maximum context length is 4096"),
    ("neither prompt nor messages", TOKENIZE, b"{}", 400, None, "exactly one"),
    ("both prompt and messages", TOKENIZE, json.dumps({"prompt": "a", "messages": HI}).encode(), 400, None, "exactly one"),
    ("negative ids to read", DETOKENIZE, b'{"tokens": [-1]}', 400, "tokens[0]", "greater"),
    ("ids of 2^63 to read", DETOKENIZE, b'{"tokens": [9223372036854775808]}', 400, "tokens[0]", "less"),
    ("ids past the vocabulary to read", DETOKENIZE, b'{"tokens": [4294967]}', 400, "tokens", "vocabulary"),
    ("ids in lists to read", DETOKENIZE, b'{"tokens": [[1], [-1]]}', 400, "tokens[0]", "integer"),
]  # fmt: skip


def check(reply: httpx.Response, status: int, param: str | None, words: str) -> None:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert words in error["message"], error
    assert len(reply.content) < 1000
    for leak in ("Traceback", "pydantic", "ValidationError", "Error:", "/engine/", "[type="):
        assert leak not in reply.text


@pytest.mark.parametrize(("path", "body", "status", "param", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_bad_request_is_told_what_to_change(front: Front, path: str, body: bytes, status: int, param: str | None, words: str) -> None:
    http = front.http
    check(http.post(path, content=body), status, param, words)
    if path in (CHAT, COMPLETIONS) and body.startswith(b"{") and b'"stream"' not in body and body.endswith(b"}"):
        streamed = http.post(path, content=body[:-1] + (b', "stream": true}' if body != b"{}" else b'"stream": true}'))
        check(streamed, status, param, words)


def test_after_all_of_them_the_server_serves(front: Front) -> None:
    http = front.http
    for _, path, body, *_ in CASES:
        http.post(path, content=body)
    reply = http.post(CHAT, content=chat())
    assert reply.json()["choices"][0]["finish_reason"] == "stop"
    wait_until(lambda: front.running == 0)


def test_the_window_is_exact_at_its_edge(front: Front) -> None:
    http = front.http
    full = http.post(COMPLETIONS, content=completion(prompt=[40] * 4095)).json()
    assert full["usage"]["total_tokens"] == 4096
    check(http.post(COMPLETIONS, content=completion(prompt=[40] * 4095, max_tokens=2)), 400, "prompt", "you requested 4097 tokens")
    assert http.post(COMPLETIONS, content=completion(prompt=[40] * 4094, max_tokens=2)).status_code == 200


def test_too_large_and_compressed_bodies_are_refused_early(front: Front) -> None:
    http = front.http
    huge = http.post(COMPLETIONS, content=completion(user="x" * (33 << 20)))
    check(huge, 413, None, "33554432")
    chunked = http.post(COMPLETIONS, content=(b" " * (1 << 20) for _ in range(40)))
    check(chunked, 413, None, "33554432")
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), (96 << 20) + 1))
        assert b" 413 " in connection.recv(100)
    check(http.post(CHAT, content=chat(), headers={"content-encoding": "gzip"}), 415, None, "uncompressed")
    assert http.post(CHAT, content=chat(), headers={"content-encoding": ""}).status_code == 200
    assert http.post(CHAT, content=chat()).status_code == 200


NEUTRAL: list[dict[str, Any]] = [
    {"n": 1, "logprobs": False, "top_logprobs": 0, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "response_format": {"type": "text"}, "logit_bias": {}},
    {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s"},
    {"max_tokens": None, "stop": [], "seed": None, "temperature": None, "top_k": None, "stream": None, "stream_options": None},
    {"max_tokens": 0, "stop": None, "draft": False, "ignore_eos": False, "min_tokens": 0, "reasoning_effort": "none", "new": {"x": [1]}},
    {"temperature": 5e-324, "seed": -1, "top_k": -1, "top_p": 0, "min_p": 1},
    {"seed": 2**63 - 1, "temperature": 0, "stop": ["zzz"], "stop_token_ids": [7], "thinking": {"type": "disabled"}},
    {"chat_template_kwargs": {"enable_thinking": False, "clear_thinking": True, "reasoning_effort": "low", "thinking": None}},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"}]},
    {"messages": [*HI, {"role": "assistant", "content": None, "tool_calls": []}, {"role": "developer", "content": "x"}]},
    {"messages": [*HI, {"role": "assistant", "content": [], "refusal": None}, *HI]},
]  # fmt: skip


@pytest.mark.parametrize("fields", NEUTRAL)
def test_neutral_and_unknown_fields_are_taken(front: Front, fields: dict[str, Any]) -> None:
    http = front.http
    reply = http.post(CHAT, content=chat(**fields))
    assert reply.status_code == 200, reply.text


KNOWN = {name for kind in (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody) for name in kind.model_fields} | set(UNSUPPORTED)
FIELDS = st.sampled_from(sorted(KNOWN | {"role", "content", "type", "function", "arguments", "tool_calls"}))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**63, -(2**64), "none", "text", "user"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(max_size=5), inner, max_size=3), max_leaves=8
)


@given(st.sampled_from([CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE]), st.dictionaries(FIELDS, values, max_size=3))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_any_field_is_served_or_refused_in_words(front: Front, path: str, fields: dict[str, Any]) -> None:
    body = {CHAT: {"messages": HI}, COMPLETIONS: {"prompt": "hi"}, TOKENIZE: {"prompt": "hi"}, DETOKENIZE: {"tokens": [1]}}[path]
    reply = front.http.post(path, content=json.dumps(body | fields).encode())
    assert reply.status_code in (200, 400, 404), reply.text
    if reply.status_code != 200:
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert len(reply.content) < 1000
