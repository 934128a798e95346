"""What the official clients read of every feature, whole and streamed, is what they read when the transcripts were recorded.

`python -m api.test_transcripts` in `tests` records them anew; look at the difference before it is committed.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
import pytest

from fixtures.fronts import FIXTURES, TOKENIZER, Front, end_front, serving, start_front
from fixtures.tool_replies import TOOLS, ids

TRANSCRIPTS = FIXTURES / "transcripts"
CALL = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Röm ☃</arg_value></tool_call>"
# By the seed a request sends.
REPLIES = {
    "1": ["One ", "two ☃.", "<|user|>"],
    "2": ["hm ", "ok</think>", "Three", ".<|user|>"],
    "3": ["See: ", CALL + "<|observation|>"],
    "4": ["look</think>", CALL, "<tool_call>now</tool_call><|observation|>"],
    "5": ["Four five six"],
}
SCRIPT = {
    "seed_rounds": {seed: [ids(text) for text in texts] for seed, texts in REPLIES.items()},
    "rounds": [ids("Other"), ids("<|user|>")],
}

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAIAAAD9b0jDAAAAJElEQVR42mP8z0B9wMRAAzBq6KihowaOGjpq6Kiho4aOGjrUDQUAI/ABN3qZ8kEAAAAASUVORK5CYII="
CHAT_TURNS = [
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": "See: ", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]  # fmt: skip
MESSAGE_TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "weather?", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "look", "signature": ""}, {"type": "text", "text": "See: "},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]}]},
]  # fmt: skip
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "look"}]},
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Rome"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
]

Fields = dict[str, Any]
CHAT: dict[str, Fields] = {
    "text": {"seed": 1},
    "thinking": {"seed": 2, "reasoning_effort": "low"},
    "a call": {"seed": 3, "tools": TOOLS},
    "two calls behind a thought": {"seed": 4, "tools": TOOLS, "reasoning_effort": "high"},
    "a call that is to be the only one": {"seed": 4, "tools": TOOLS, "parallel_tool_calls": False, "reasoning_effort": "high"},
    "a tool's result": {"seed": 1, "tools": TOOLS, "messages": CHAT_TURNS},
    "a stop string": {"seed": 5, "stop": ["five"]},
    "cut by max_tokens": {"seed": 5, "max_completion_tokens": 2},
    "cut in a call": {"seed": 3, "tools": TOOLS, "max_completion_tokens": 5},
    "two choices": {"seed": 1, "n": 2},
    "logprobs": {"seed": 1, "logprobs": True, "top_logprobs": 2},
    "going on with the assistant's words": {
        "seed": 1, "messages": [*HI, {"role": "assistant", "content": "Well"}],
        "extra_body": {"continue_final_message": True, "return_token_ids": True},
    },
    "ids": {"seed": 1, "extra_body": {"return_token_ids": True, "draft": False, "priority": "background", "cache_salt": "s"}},
    "a picture": {"seed": 1, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}]}]},
}  # fmt: skip
COMPLETIONS: dict[str, Fields] = {
    "text": {"seed": 1},
    "echo and logprobs": {"seed": 1, "echo": True, "logprobs": 2, "max_tokens": 1, "prompt": TOKENIZER.encode("hi ☃")},
    "the prompt only": {"seed": 1, "echo": True, "logprobs": 1, "max_tokens": 0},
    "two prompts of two choices": {"seed": 1, "prompt": ["a", "b"], "n": 2},
    "a stop string": {"seed": 5, "stop": "five"},
}
RESPONSES: dict[str, Fields] = {
    "text": {"seed": 1, "instructions": "Be brief."},
    "thinking": {"seed": 2, "reasoning": {"effort": "low"}},
    "a call": {"seed": 3, "tools": [{"type": "function", "name": "get_weather", "parameters": SCHEMA}, {"type": "web_search"}]},
    "two calls behind a thought": {
        "seed": 4, "tools": [{"type": "function", **tool["function"]} for tool in TOOLS[1:3]], "reasoning": {"effort": "high"},
    },
    "a tool's result": {"seed": 1, "input": ITEMS},
    "cut by max_output_tokens": {"seed": 2, "max_output_tokens": 1, "reasoning": {"effort": "low"}},
    "nothing said": {"seed": 1, "input": [], "max_output_tokens": 1},
    "a picture": {"seed": 1, "input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}]}]},
}  # fmt: skip
MESSAGES: dict[str, Fields] = {
    "text": {"seed": 1, "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    "thinking": {"seed": 2, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    "a call": {"seed": 3, "tools": [{"name": "get_weather", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"}},
    "two calls behind a thought": {
        "seed": 4, "tools": [{"name": "get_weather", "input_schema": SCHEMA}, {"name": "now", "input_schema": {"type": "object"}}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "a tool's result": {"seed": 1, "messages": MESSAGE_TURNS},
    "a stop string": {"seed": 5, "stop_sequences": ["five"]},
    "cut by max_tokens": {"seed": 5, "max_tokens": 2},
    "cut in thought": {"seed": 2, "max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    "going on with the assistant's words": {"seed": 1, "messages": [*HI, {"role": "assistant", "content": "Well"}]},
    "a picture": {"seed": 1, "messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}]}]},
}  # fmt: skip
REFUSED: dict[str, Fields] = {
    "another model": {"model": "gpt-5"},
    "past the window": {"messages": [{"role": "user", "content": "word " * 6000}]},
    "no messages": {"messages": []},
    "a picture from elsewhere": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}]}]
    },
}
# What differs from run to run: names, moments, spans of time, rounds of a reply that the front ends.
_NAMES = re.compile(r"(chatcmpl-|cmpl-|resp_|msg_|rs_|fc_)[0-9a-f]{24}")
_MOMENTS = {"created", "created_at", "time_to_first_token_s", "tokens_per_s", "queued_s", "prefill_s", "decode_s", "rounds", "_request_id"}


def plain(value: Any) -> Any:
    """Without what differs from run to run."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in _MOMENTS}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return _NAMES.sub(r"\1ID", value) if isinstance(value, str) else value


def read(value: Any) -> Any:
    """What a client made of a reply, as plain values."""
    return plain(value.to_dict(mode="json"))


def _choice_of(event: Any) -> int:
    return event["choices"][0]["index"] if event.get("choices") else 0 if "type" in event else 99


class Clients:
    """Both official clients, asking for one kind of thing by its name."""

    def __init__(self, url: str) -> None:
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def ask(self, kind: str, fields: Fields, stream: bool) -> Any:
        """The reply, or the list of the events of its stream."""
        fields, openai_client, claude = dict(fields), cast(Any, self.openai), cast(Any, self.anthropic)
        named = {"model": "glm-5.3-flash", "stream": stream}
        if kind in ("responses", "messages"):
            fields["extra_body"] = {"seed": fields.pop("seed")} | fields.get("extra_body", {})
        match kind:
            case "chat":
                options = {"stream_options": {"include_usage": True}} if stream else {}
                found = openai_client.chat.completions.create(**{"messages": HI} | named | options | fields)
            case "completions":
                found = openai_client.completions.create(**{"prompt": "hi"} | named | fields)
            case "responses":
                found = openai_client.responses.create(**{"input": "hi"} | named | fields)
            case _:
                found = claude.messages.create(**{"messages": HI, "max_tokens": 100} | named | fields)
        # Choices come side by side: what is told of each is in order, which of them is first is chance.
        return sorted(map(read, found), key=_choice_of) if stream else read(found)

    def refusal(self, fields: Fields) -> Any:
        """Class, status and body of what each client raises."""
        told = {}
        creates: dict[str, Any] = {"openai": self.openai.chat.completions.create, "anthropic": self.anthropic.messages.create}
        for client, create in creates.items():
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
                create(**{"model": "glm-5.3-flash", "messages": HI, "max_tokens": 9} | fields)
            told[client] = [type(raised.value).__name__, raised.value.status_code, raised.value.body]
        return told


CASES = {"chat": CHAT, "completions": COMPLETIONS, "responses": RESPONSES, "messages": MESSAGES}
NAMED = [(kind, name) for kind, cases in CASES.items() for name in cases]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with serving(start_front(tmp_path_factory.mktemp("golden"), SCRIPT)) as started:
        yield Clients(started.url)


def recorded(kind: str) -> dict[str, Any]:
    return json.loads((TRANSCRIPTS / f"{kind}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("kind", "name"), NAMED, ids=[f"{kind}, {name}" for kind, name in NAMED])
def test_a_client_reads_what_was_recorded_whole_and_streamed(clients: Clients, kind: str, name: str) -> None:
    fields = CASES[kind][name]
    found = {"whole": clients.ask(kind, fields, stream=False), "events": clients.ask(kind, fields, stream=True)}
    assert found == recorded(kind)[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_client_raises_what_was_recorded(clients: Clients, name: str) -> None:
    assert clients.refusal(REFUSED[name]) == recorded("refused")[name]


@pytest.mark.parametrize(("kind", "name"), NAMED, ids=[f"{kind}, {name}" for kind, name in NAMED])
def test_the_recorded_streams_add_up_to_the_recorded_replies(kind: str, name: str) -> None:
    case = recorded(kind)[name]
    assert JOINED[kind](case["events"]) == JOINED[kind]([case["whole"]])


def _joined_choices(values: list[Any]) -> Any:
    """Text, thoughts, calls, logarithms and finish of each choice."""
    told: dict[int, dict[str, Any]] = {}
    for choice in [choice for value in values for choice in value["choices"]]:
        said = choice.get("delta") or choice.get("message") or {"content": choice.get("text", "")}
        one = told.setdefault(choice["index"], {"content": "", "reasoning_content": "", "calls": [], "logprobs": [], "reason": None})
        for key in ("content", "reasoning_content"):
            one[key] += said.get(key) or ""
        one["calls"] += [call["function"] | {"id": call["id"]} for call in said.get("tool_calls") or ()]
        rows = choice.get("logprobs") or {}
        one["logprobs"] += rows.get("content") or list(zip(*(rows[key] for key in sorted(rows)), strict=True))
        one["reason"] = choice["finish_reason"] or one["reason"]
    return told


def _joined_items(values: list[Any]) -> Any:
    """The last word on the reply, and its items as deltas told them."""
    last = values[-1].get("response", values[-1])
    texts: dict[int, str] = {}
    for event in values:
        if event.get("type", "").endswith(".delta"):
            texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
    for index, text in texts.items():
        item = last["output"][index]
        assert text == item.get("arguments", (item.get("content") or [{}])[0].get("text"))
    assert [event["sequence_number"] for event in values if "sequence_number" in event] == list(range(len(values))) or len(values) == 1
    return last


def _joined_blocks(values: list[Any]) -> Any:
    if values[0]["type"] == "message":
        whole = values[0]
        return whole["content"], whole["stop_reason"], whole["stop_sequence"], whole["usage"]
    blocks: list[dict[str, Any]] = []
    for event in values:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for key, more in (("text", delta.get("text")), ("thinking", delta.get("thinking"))):
                if more is not None:
                    blocks[event["index"]][key] += more
            if "partial_json" in delta:
                blocks[event["index"]]["input"] = json.loads(delta["partial_json"])
    end = next(event for event in values if event["type"] == "message_delta")
    return blocks, end["delta"]["stop_reason"], end["delta"]["stop_sequence"], end["usage"]


JOINED = {"chat": _joined_choices, "completions": _joined_choices, "responses": _joined_items, "messages": _joined_blocks}


def record() -> None:
    """Write the transcripts of this server."""
    TRANSCRIPTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        front: Front = start_front(Path(folder), SCRIPT)
        try:
            front.wait_for("/health/ready", 200)
            asking = Clients(front.url)
            told: dict[str, Any] = {
                kind: {
                    name: {"whole": asking.ask(kind, fields, False), "events": asking.ask(kind, fields, True)}
                    for name, fields in cases.items()
                }
                for kind, cases in CASES.items()
            }
            told["refused"] = {name: asking.refusal(fields) for name, fields in REFUSED.items()}
        finally:
            end_front(front)
    for kind, cases in told.items():
        lines = [f"{json.dumps(name)}: {json.dumps(case, ensure_ascii=False)}" for name, case in cases.items()]
        (TRANSCRIPTS / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
