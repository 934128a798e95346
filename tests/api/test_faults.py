"""Faults that servers of this kind were reported with, tried on this one: those no other file of tests shows.

The list of all, with the test that shows each, is docs/api_faults.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fixtures.fronts import TOKENIZER, Front, events, serving, start_front
from fixtures.tool_replies import TOOLS, ids
from fixtures.waiting import wait_until

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
COUNT, TOKENIZE, DETOKENIZE = "/v1/messages/count_tokens", "/tokenize", "/detokenize"
HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI}, COMPLETIONS: {"prompt": "hi"}, RESPONSES: {"input": "hi"}, MESSAGES: {"messages": HI, "max_tokens": 100},
}  # fmt: skip
STOPS = {CHAT: "stop", COMPLETIONS: "stop", MESSAGES: "stop_sequences", RESPONSES: "stop"}
CALL = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>"
NOW = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
REPLIES = {
    "1": ["one two five six seven eight", " nine", "<|user|>"],
    "2": ["abcd", "efgh", "STOPWOR", "K", CALL, "<|observation|>"],
    "3": ["no close tag at all", "<|user|>"],
    "4": ["</think>", "hi", "<|user|>"],
    "5": ["thinking ", CALL, "<|observation|>"],
    "6": ["a ", "b ", "c ", "d<|user|>"],
    "7": ["Q", *["no, "] * 400, "<|user|>"],
}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    spelled = {seed: [ids(text) for text in texts] for seed, texts in REPLIES.items()}
    with serving(
        start_front(tmp_path_factory.mktemp("faults"), {"seed_rounds": spelled, "rounds": [ids("Fine."), ids("<|user|>")]})
    ) as started:
        yield started


def ask(front: Front, path: str = CHAT, **fields: Any) -> Any:
    """The whole reply."""
    reply = front.http.post(path, json=BODIES[path] | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def told(front: Front, path: str = CHAT, **fields: Any) -> list[Any]:
    """Data of the events of a stream."""
    text = front.http.post(path, json=BODIES[path] | fields | {"stream": True}).text
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def text_of(path: str, reply: Any) -> str:
    """What a reply says."""
    match path:
        case "/v1/messages":
            return "".join(block.get("text", "") for block in reply["content"])
        case "/v1/responses":
            return "".join(part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"])
    choice = reply["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def streamed_text(path: str, chunks: list[Any]) -> str:
    """What a stream says."""
    if path in (MESSAGES, RESPONSES):
        deltas = [chunk["delta"] for chunk in chunks if chunk["type"] in ("content_block_delta", "response.output_text.delta")]
        return "".join(delta if isinstance(delta, str) else delta["text"] for delta in deltas)
    choices = [chunk["choices"][0] for chunk in chunks if chunk != "[DONE]"]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@pytest.mark.parametrize("path", BODIES)
def test_text_past_a_stop_inside_one_step_never_leaks(front: Front, path: str) -> None:
    fields = {"seed": 1, STOPS[path]: ["five"]}
    assert text_of(path, ask(front, path, **fields)) == streamed_text(path, told(front, path, **fields)) == "one two "


def test_only_what_may_become_a_stop_is_held_back_and_a_call_behind_it_is_read(front: Front) -> None:
    chunks = told(front, seed=2, stop=["STOPWORD"], tools=TOOLS)[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta["content"] for delta in deltas if delta.get("content")] == ["abcd", "efgh", "STOPWORK"]
    assert [call["function"]["name"] for delta in deltas for call in delta.get("tool_calls", ())] == ["get_weather"]
    assert all(delta for delta in deltas[1:-1])


def test_ids_and_moments_are_one_in_a_stream_of_completions(front: Front) -> None:
    chunks = told(front, COMPLETIONS, seed=6)[:-1]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert len(chunks) > 3


REFUSED: list[tuple[str, dict[str, Any], int]] = [
    (CHAT, {"model": "other"}, 404),
    (CHAT, {"messages": [{"role": "user", "content": "1 " * 5000}]}, 400),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}},
        400,
    ),
    (CHAT, {"n": 0}, 400),
    (COMPLETIONS, {"prompt": "1 " * 5000}, 400),
    (RESPONSES, {"model": "other"}, 404),
    (RESPONSES, {"input": "1 " * 5000}, 400),
    (MESSAGES, {"model": "other"}, 404),
    (MESSAGES, {"messages": [{"role": "user", "content": "1 " * 5000}]}, 400),
]


@pytest.mark.parametrize(("path", "fields", "status"), REFUSED, ids=[f"{path} {next(iter(fields))}" for path, fields, _ in REFUSED])
def test_a_streamed_request_is_refused_with_the_status_of_a_whole_one(front: Front, path: str, fields: dict[str, Any], status: int) -> None:
    for stream in (False, True):
        reply = front.http.post(path, json=BODIES[path] | fields | {"stream": stream})
        assert (reply.status_code, reply.headers["content-type"]) == (status, "application/json")
        assert ("type" in reply.json()) == (path == MESSAGES)


def test_too_long_prompts_cost_no_slot_however_many_come(front: Front) -> None:
    for number in range(20):
        body = {"prompt": [40] * (4096 + number), "stream": bool(number % 2)}
        assert front.http.post(COMPLETIONS, json=body).json()["error"]["code"] == "context_length_exceeded"
    with ThreadPoolExecutor(4) as pool:
        assert {text_of(CHAT, reply) for reply in pool.map(lambda _: ask(front), range(4))} == {"Fine."}
    wait_until(lambda: front.running == front.http.get("/health").json()["streams"]["waiting"] == 0)


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 5e-324])
def test_a_tiny_temperature_is_greedy(embedded: Front, temperature: float) -> None:
    greedy = ask(embedded, temperature=0, max_tokens=12)["lockstep"]["token_sha"]
    assert ask(embedded, temperature=temperature, max_tokens=12)["lockstep"]["token_sha"] == greedy


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63, 2**64, 1.5, "7", True])
def test_a_seed_outside_int64_or_of_another_kind_is_refused(front: Front, seed: Any) -> None:
    for path, body in BODIES.items():
        assert front.http.post(path, json=body | {"seed": seed}).status_code == 400
    assert ask(front, seed=-1)["choices"]


def test_bad_ids_of_one_request_change_nothing_for_another(embedded: Front) -> None:
    alone = ask(embedded, max_tokens=48, ignore_eos=True, temperature=0)["lockstep"]["token_sha"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, embedded, max_tokens=48, ignore_eos=True, temperature=0, cache_salt="b")
        for bad in ({"stop_token_ids": [2**31]}, {"stop_token_ids": [-1]}, {"logit_bias": {"2304": 1}}):
            assert embedded.http.post(CHAT, json=BODIES[CHAT] | bad).status_code == 400
        assert running.result()["lockstep"]["token_sha"] == alone


@pytest.mark.parametrize("value", [None, 0], ids=["null", "zero"])
def test_no_number_of_tokens_is_the_default(front: Front, value: Any) -> None:
    for path in (CHAT, COMPLETIONS):
        assert ask(front, path, seed=6, max_tokens=value)["choices"][0]["finish_reason"] == "stop"


def test_a_malformed_input_of_a_megabyte_is_answered_in_short(front: Front) -> None:
    reply = front.http.post(RESPONSES, json={"input": {"a": "x" * (1 << 20)}})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")
    assert len(reply.content) < 1000


def test_options_of_a_template_reach_no_template(front: Front) -> None:
    for kwargs in ({"tokenize": False, "messages": []}, {"chat_template": "{% for a in range(10**9) %}{% endfor %}"}):
        assert front.http.post(CHAT, json=BODIES[CHAT] | {"chat_template_kwargs": kwargs}).status_code == 400
    assert front.http.post(CHAT, json=BODIES[CHAT] | {"chat_template": "{{ 1 }}"}).status_code == 400


BAD_JSON = [b"", b"[]", b'{"model": ', b"\xef\xbb\xbf{}", '{"model": "a"}'.encode("utf-16"), b'{"a": 1, "a": 2}', b'{"a": NaN}']


@pytest.mark.parametrize("path", [*BODIES, COUNT, TOKENIZE, DETOKENIZE])
def test_bad_json_is_a_400_in_the_routes_words(front: Front, path: str) -> None:
    for data in BAD_JSON:
        reply = front.http.post(path, content=data)
        assert reply.status_code == 400, data
        assert ("type" in reply.json()) == path.startswith(MESSAGES)
    empty = {"messages": []} if path != COMPLETIONS else {"prompt": ""}
    assert front.http.post(path, json=empty).status_code == 400 or path == RESPONSES


@pytest.mark.parametrize(("path", "fields"), [
    (CHAT, {"stream": "false"}), (CHAT, {"stream_options": {"include_usage": "yes"}}), (CHAT, {"parallel_tool_calls": 0}),
    (CHAT, {"draft": 1}), (COMPLETIONS, {"echo": 1}), (COMPLETIONS, {"stream": 1}), (RESPONSES, {"store": "no"}),
    (RESPONSES, {"stream": "true"}),
    (RESPONSES, {"parallel_tool_calls": "yes"}), (MESSAGES, {"stream": "false"}),
    (MESSAGES, {"draft": "no"}), (MESSAGES, {"ignore_eos": 1}),
])  # fmt: skip
def test_nothing_but_true_and_false_is_a_switch(front: Front, path: str, fields: dict[str, Any]) -> None:
    assert front.http.post(path, json=BODIES[path] | fields).status_code == 400


def test_a_switch_of_one_request_is_no_switch_of_the_next(front: Front) -> None:
    def prompt(**fields: Any) -> str:
        return TOKENIZER.decode(ask(front, return_token_ids=True, **fields)["lockstep"]["prompt_token_ids"])

    plain = prompt()
    assert prompt(thinking=True) != plain
    assert prompt() == plain
    assert prompt(reasoning_effort="low", tools=TOOLS) != plain
    assert [prompt(), prompt()] == [plain, plain]


@pytest.mark.parametrize("assistant", [
    {"content": "See.", "tool_calls": []},
    {"content": [{"type": "text", "text": "See."}], "tool_calls": []},
    {"content": [], "tool_calls": [NOW]},
    {"content": "See.", "tool_calls": [NOW]},
    {"content": [{"type": "text", "text": "See."}], "tool_calls": [NOW | {"function": {"name": "now", "arguments": ""}}]},
])  # fmt: skip
def test_every_shape_of_an_earlier_turn_shows_its_text_and_its_calls(front: Front, assistant: dict[str, Any]) -> None:
    messages = [*HI, {"role": "assistant"} | assistant, {"role": "user", "content": "go on"}]
    prompt = TOKENIZER.decode(ask(front, messages=messages, tools=TOOLS, return_token_ids=True)["lockstep"]["prompt_token_ids"])
    history = prompt.rpartition("<|user|>hi")[2]
    assert ("See." in history) == bool(assistant["content"])
    assert ("<tool_call>now</tool_call>" in history) == bool(assistant["tool_calls"])


def test_a_thought_without_an_end_stays_a_thought_and_an_empty_one_shows_nothing(front: Front) -> None:
    open_end = ask(front, seed=3, thinking=True)["choices"][0]["message"]
    assert (open_end["reasoning_content"], open_end["content"]) == ("no close tag at all", "")
    empty = ask(front, seed=4, thinking=True)["choices"][0]["message"]
    assert ("reasoning_content" in empty, empty["content"]) == (False, "hi")
    assert not any("reasoning_content" in chunk["choices"][0]["delta"] for chunk in told(front, seed=4, thinking=True)[:-1])
    for path in (RESPONSES, MESSAGES):
        switch: dict[str, Any] = {"reasoning": {"effort": "low"}} if path == RESPONSES else {"thinking": {"type": "enabled"}}
        reply = ask(front, path, seed=4, **switch)
        assert [block["type"] for block in reply.get("content", reply.get("output"))] == ["text" if path == MESSAGES else "message"]


def test_a_call_before_the_end_of_a_thought_is_delivered_in_every_dialect(front: Front) -> None:
    function = TOOLS[1]["function"]
    chat = ask(front, seed=5, thinking=True, tools=TOOLS)["choices"][0]
    responses = ask(front, RESPONSES, seed=5, reasoning={"effort": "low"}, tools=[{"type": "function", **function}])
    tools = [{"name": function["name"], "input_schema": function["parameters"]}]
    messages = ask(front, MESSAGES, seed=5, thinking={"type": "enabled"}, tools=tools)
    assert (chat["finish_reason"], chat["message"]["reasoning_content"]) == ("tool_calls", "thinking ")
    assert [item["type"] for item in responses["output"]] == ["reasoning", "function_call"]
    assert [block["type"] for block in messages["content"]] == ["thinking", "tool_use"]
    assert not any("<tool_call>" in json.dumps(reply) for reply in (chat, responses, messages))


def test_a_thought_that_a_client_dropped_before_its_call_is_in_the_next_prompt_again(front: Front) -> None:
    """In every dialect, so that the states of that prompt are found; not for a call of another salt, nor another call."""
    function = TOOLS[1]["function"]
    fields: dict[str, Any] = {"seed": 5, "thinking": True, "tools": TOOLS, "return_token_ids": True}
    message = ask(front, **fields)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}

    def prompt(turn: dict[str, Any], **more: Any) -> str:
        reply = ask(front, messages=[*HI, turn, result], **fields, **more)
        return TOKENIZER.decode(reply["lockstep"]["prompt_token_ids"])

    dropped = {name: value for name, value in message.items() if name != "reasoning_content"}
    assert message["reasoning_content"] in prompt(message) == prompt(dropped)
    assert message["reasoning_content"] not in prompt(dropped, cache_salt="other")
    assert "something else" in prompt(dropped | {"reasoning_content": "something else"})
    body = {"messages": [*HI, dropped, result], "tools": TOOLS, "thinking": True}
    assert TOKENIZER.decode(front.http.post(TOKENIZE, json=body).json()["tokens"]) == prompt(dropped)
    tools = [{"name": function["name"], "input_schema": function["parameters"]}]
    asked = {"seed": 5, "thinking": {"type": "enabled"}, "tools": tools, "return_token_ids": True}
    thought, call = ask(front, MESSAGES, **asked)["content"]
    told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}]}
    whole, bare = (
        ask(front, MESSAGES, messages=[*HI, {"role": "assistant", "content": blocks}, told], **asked)["lockstep"]["prompt_token_ids"]
        for blocks in ([thought, call], [call])
    )
    assert whole == bare


def test_a_cached_turn_makes_the_same_calls(embedded: Front) -> None:
    tool = {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    asked = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": [tool], "temperature": 0, "max_tokens": 64}
    first, again = ask(embedded, **asked), ask(embedded, **asked)
    assert first["choices"][0]["message"]["tool_calls"]
    assert first["choices"] == again["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_a_stored_or_foreign_reply_is_never_somebody_elses(front: Front, path: str) -> None:
    made = ask(front, RESPONSES, seed=6, store=path == RESPONSES)
    found = front.http.get(f"{RESPONSES}/{made['id']}")
    assert found.status_code == (200 if path == RESPONSES else 404)
    if path == RESPONSES:
        assert found.json() == made
        again = ask(front, RESPONSES, previous_response_id=made["id"], input="more", return_token_ids=True)
        assert "a b c d<|user|>more" in TOKENIZER.decode(again["lockstep"]["prompt_token_ids"])
        assert front.http.delete(f"{RESPONSES}/{made['id']}").json()["deleted"] is True
    assert (
        front.http.post(RESPONSES, json={"input": "x", "previous_response_id": made["id"]}).json()["error"]["code"] == "response_not_found"
    )


@pytest.mark.parametrize(("path", "fields"), [
    (RESPONSES, {"background": True}), (RESPONSES, {"conversation": "c"}), (RESPONSES, {"truncation": "auto"}),
    (RESPONSES, {"prompt": {"id": "p"}}),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}), (RESPONSES, {"top_logprobs": 2}), (RESPONSES, {"input": None}),
    (RESPONSES, {"logprobs": True}), (RESPONSES, {"n": 2}), (MESSAGES, {"logprobs": True}), (MESSAGES, {"n": 2}),
    (CHAT, {"bad_words": ["x"]}),
    *((path, {"grammar": 'root ::= "a"'}) for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)), (COMPLETIONS, {"json_schema": {}}),
    (RESPONSES, {"input": [{"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}),
    (RESPONSES, {"input": [{"type": "poem"}]}), (MESSAGES, {"container": "c"}), (MESSAGES, {"mcp_servers": [{"url": "x"}]}),
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), (MESSAGES, {"thinking": {"type": "maybe"}}),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}),
    (MESSAGES, {"tool_choice": {"type": "some"}}),
    (MESSAGES, {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]}),
    (MESSAGES, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
])  # fmt: skip
def test_what_a_dialect_has_and_this_server_has_not_is_refused_by_name(front: Front, path: str, fields: dict[str, Any]) -> None:
    reply = front.http.post(path, json=BODIES[path] | fields)
    assert reply.status_code == 400
    assert next(iter(fields)).partition("_")[0] in reply.json()["error"]["message"]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAIAAAD9b0jDAAAAJElEQVR42mP8z0B9wMRAAzBq6KihowaOGjpq6Kiho4aOGjrUDQUAI/ABN3qZ8kEAAAAASUVORK5CYII="


def test_pictures_in_results_of_tools_are_one_picture_in_every_dialect(front: Front) -> None:
    url = f"data:image/png;base64,{PIXEL}"
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    use = {"type": "tool_use", "id": "c", "name": "now", "input": {}}
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    asked: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [*HI, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": [
            {"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]}]},
        RESPONSES: {"input": [*HI, {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}, {
            "type": "function_call_output", "call_id": "c", "output": [
                {"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": url}]}]},
        MESSAGES: {"messages": [*HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "look"}, block]}]}]},
    }  # fmt: skip
    prompts = [ask(front, path, **fields, return_token_ids=True)["lockstep"]["prompt_token_ids"] for path, fields in asked.items()]
    assert prompts[0] == prompts[1] == prompts[2]
    assert "<|image|>" in TOKENIZER.decode(prompts[0])
    asked[MESSAGES]["messages"][-1]["content"][0]["content"][1]["source"]["data"] = "AAAA"
    refused = front.http.post(MESSAGES, json=BODIES[MESSAGES] | asked[MESSAGES])
    assert (refused.status_code, "`messages[2].content[0].content[1]`" in refused.json()["error"]["message"]) == (400, True)


def loops_ended(front: Front) -> float:
    [line] = [line for line in front.http.get("/metrics").text.splitlines() if line.startswith("lockstep_loops_total")]
    return float(line.split()[1])


def test_a_stream_of_messages_has_pings_where_anthropics_has_them(front: Front) -> None:
    text = front.http.post(MESSAGES, json=BODIES[MESSAGES] | {"stream": True}).text
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert 'event: ping\ndata: {"type":"ping"}\n\n' in text


@pytest.mark.parametrize("path", BODIES)
def test_a_reply_that_repeats_itself_without_end_is_cut_and_says_so(front: Front, path: str) -> None:
    ended, before = 256 + len(ids("Q")), loops_ended(front)
    most: dict[str, Any] = {"seed": 7, "max_output_tokens" if path == RESPONSES else "max_tokens": 3000}
    reply, chunks = ask(front, path, **most), [chunk for chunk in told(front, path, **most) if chunk != "[DONE]"]
    assert reply["lockstep"]["loop_tokens"] == len(ids("no, "))
    assert text_of(path, reply) == streamed_text(path, chunks)
    usage = reply["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == ended
    reason = reply.get("stop_reason") or (reply.get("incomplete_details") or {}).get("reason") or reply["choices"][0]["finish_reason"]
    assert reason == {MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}.get(path, "length")
    free = [{"loop_guard": False}, {"ignore_eos": True}, {"min_tokens": 1}]
    for asked in free:
        reply = ask(front, path, **most, **asked)
        assert text_of(path, reply).count("no, ") == 400
        assert "loop_tokens" not in reply["lockstep"]
    assert loops_ended(front) == before + 2


def test_after_all_of_them_a_plain_request_is_answered(front: Front) -> None:
    assert text_of(CHAT, ask(front)) == streamed_text(CHAT, told(front)) == "Fine."
    assert events(front.http.post(CHAT, json=BODIES[CHAT] | {"stream": True}).text)[-1] == "[DONE]"
