"""Requests that are odd but legal mean what their plain form means, and what is refused is called as its sender called it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from api.test_faults import BODIES, CHAT, COMPLETIONS, HI, MESSAGES, RESPONSES, ask
from fixtures.fronts import EOS, TOKENIZER, Front, events
from fixtures.tool_replies import TOOLS

QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]


class Weather(BaseModel):
    """Weather of a city"""

    city: str


ODD_BUT_LEGAL: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (CHAT, {"messages": [*HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *HI]},
     {"messages": [*HI, {"role": "assistant", "content": "No."}, *HI]}),
    (CHAT, {"messages": [{"role": "developer", "content": "Be."}, *HI]}, {"messages": [{"role": "system", "content": "Be."}, *HI]}),
    (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 3}}, {"thinking": True, "thinking_budget": 3}),
    (CHAT, {"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
    (CHAT, {"reasoning": {"enabled": True, "max_tokens": 3}}, {"thinking": True, "thinking_budget": 3}),
    (MESSAGES, {"tools": [{"type": None, "name": "f" * 128, "input_schema": {"type": "object"}}]},
     {"tools": [{"name": "f" * 128, "input_schema": {"type": "object"}}]}),
    (CHAT, {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS[:1]}}},
     {"tools": TOOLS[:1]}),
    (CHAT, {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}},
     {"tools": [tool for tool in TOOLS if tool["function"]["name"] == "now"]}),
    (CHAT, {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, {}),
    (CHAT, dict.fromkeys(("tools", "tool_choice", "stop", "n", "seed", "stream", "response_format", "logit_bias", "audio", "user")), {}),
    (RESPONSES, {"input": [{"role": "developer", "content": [{"type": "input_text", "text": "Be."}]}, {"role": "user", "content": "hi"}]},
     {"instructions": "Be."}),
    (MESSAGES, {"system": [{"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, {"system": "Be."}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "odd", "plain"), ODD_BUT_LEGAL)
def test_what_is_odd_but_legal_means_what_the_plain_form_means(front: Front, path: str, odd: dict[str, Any], plain: dict[str, Any]) -> None:
    replies = [ask(front, path, return_token_ids=True, **fields)["lockstep"] for fields in (odd, plain)]
    assert replies[0]["prompt_token_ids"] == replies[1]["prompt_token_ids"]
    assert replies[0].get("thinking_budget_used_up") == replies[1].get("thinking_budget_used_up")


MISNAMED: list[tuple[str, dict[str, Any], str]] = [
    (MESSAGES, {"stop_sequences": [""]}, "stop_sequences"),
    (MESSAGES, {"output_config": {"effort": "extreme"}}, "output_config.effort"),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking.budget_tokens"),
    (RESPONSES, {"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"multipleOf": 3}}}}, "text.format.schema"),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": {"multipleOf": 3}}}}, "output_config.format.schema"),
    (RESPONSES, {"min_tokens": 5, "text": {"format": {"type": "json_object"}}}, "text.format"),
    (RESPONSES, {"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    (CHAT, {"tool_choice": {"type": "allowed_tools", "tools": 5}}, "tool_choice"),
    (
        MESSAGES,
        {"system": "Be.", "messages": [*HI, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": 5}]}]},
        "messages[1].content[0].tool_use_id",
    ),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": {"a": 1}}]}]},
        "messages[0].content[0].content",
    ),
    (
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any", "disable_parallel_tool_use": "yes"}},
        "tool_choice.disable_parallel_tool_use",
    ),
    (RESPONSES, {"instructions": "Be.", "input": [*HI, {"type": "function_call_output", "call_id": 5, "output": ""}]}, "input[1].call_id"),
    (
        RESPONSES,
        {"input": [*HI, {"role": "user", "content": [{"type": "input_image", "image_url": "data:", "detail": "x"}]}]},
        "input[1].content",
    ),
    (RESPONSES, {"input": None, "previous_response_id": ""}, "input"),
]


@pytest.mark.parametrize(("path", "fields", "name"), MISNAMED)
def test_a_field_is_named_as_the_client_called_it(front: Front, path: str, fields: dict[str, Any], name: str) -> None:
    reply = front.http.post(path, json=BODIES[path] | fields)
    assert reply.status_code == 400
    assert f"`{name}`" in reply.json()["error"]["message"]


def test_a_conversation_that_is_too_long_is_called_as_its_dialect_calls_it(front: Front) -> None:
    for text in ("1 " * 5000, "1 " * 500_000):
        reply = front.http.post(RESPONSES, json={"input": text})
        assert (reply.json()["error"]["param"], reply.json()["error"]["code"]) == ("input", "context_length_exceeded")


@pytest.mark.parametrize(("path", "name"), [
    (COMPLETIONS, "max_completion_tokens"), (RESPONSES, "max_tokens"), (RESPONSES, "max_completion_tokens"),
    (CHAT, "max_completion_tokens"),
])  # fmt: skip
def test_a_number_of_tokens_counts_whatever_it_is_called(front: Front, path: str, name: str) -> None:
    usage = ask(front, path, **{name: 2})["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 2


def test_the_name_of_a_beta_for_the_form_of_a_message_is_heard(embedded: Front) -> None:
    form = {"type": "json_schema", "schema": Weather.model_json_schema() | {"additionalProperties": False}}
    texts = [ask(embedded, MESSAGES, max_tokens=80, **told)["content"][0]["text"] for told in (
        {"output_format": form}, {"output_config": {"format": form}})]  # fmt: skip
    assert Weather.model_validate_json(texts[0])
    assert texts[0] == texts[1]


def test_helpers_of_the_official_clients_run_to_their_end(embedded: Front) -> None:
    """Parsed replies, streams with their final objects, and a loop of calls and results, all by the clients' own code."""
    client = openai.OpenAI(base_url=embedded.url + "/v1", api_key="none", max_retries=0)
    common: dict[str, Any] = {"model": "glm-5.3-flash", "temperature": 0}
    tool = openai.pydantic_function_tool(Weather)
    parsed = client.chat.completions.parse(messages=QUESTION, response_format=Weather, max_tokens=80, **common).choices[0].message.parsed
    assert isinstance(parsed, Weather)
    with client.chat.completions.stream(messages=QUESTION, tools=[tool], tool_choice="required", max_tokens=80, **common) as stream:
        kinds = {event.type for event in stream}
        calls = stream.get_final_completion().choices[0].message.tool_calls or []
    assert "tool_calls.function.arguments.done" in kinds
    assert [type(call.function.parsed_arguments) for call in calls] == [Weather]
    with client.responses.stream(input="hi", text_format=Weather, max_output_tokens=80, **common) as told:
        kinds = {event.type for event in told}
        assert isinstance(told.get_final_response().output_parsed, Weather)
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds
    assert client.models.retrieve("glm-5.3-flash").id == client.models.list().data[0].id


def test_helpers_of_anthropics_client_run_to_their_end(embedded: Front) -> None:
    client = anthropic.Anthropic(base_url=embedded.url, api_key="none", max_retries=0)
    asked: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather of a city"""
        asked.append(city)
        return "sunny, 21 degrees"

    common: dict[str, Any] = {"model": "claude-anything", "max_tokens": 100, "messages": QUESTION}
    turns = [message.stop_reason for message in client.beta.messages.tool_runner(tools=[get_weather], max_iterations=3, **common)]
    assert turns == ["tool_use", "end_turn"]
    assert asked == ["Rome"]
    with client.messages.stream(thinking={"type": "enabled", "budget_tokens": 1024}, **common) as stream:
        kinds = {event.type for event in stream}
        blocks = [block.type for block in stream.get_final_message().content]
    assert {"message_start", "content_block_stop", "message_stop"} <= kinds
    assert blocks[0] == "thinking"
    assert isinstance(client.messages.parse(output_format=Weather, **common).parsed_output, Weather)
    shown = client.models.list().data[0]
    assert (shown.id, shown.display_name, shown.type) == ("glm-5.3-flash", "glm-5.3-flash", "model")
    batch: Any = {"custom_id": "1", "params": common}
    with pytest.raises(anthropic.NotFoundError, match="There is nothing at /v1/messages/batches"):
        client.messages.batches.create(requests=[batch])


def test_offsets_of_tokens_are_places_in_the_text_that_is_shown(serve: Callable[..., Front]) -> None:
    """A control token is part of a prompt's text and of no reply's."""
    control = TOKENIZER.added["<|assistant|>"]
    words = [TOKENIZER.encode(word) for word in ("one", " two", " three")]
    front = serve({"rounds": [words[0], [control], words[1], words[2], [EOS]]})
    for stream in (False, True):
        body = {"prompt": [control, *words[0]], "echo": True, "logprobs": 0, "max_tokens": 9, "stream": stream}
        reply = front.http.post(COMPLETIONS, json=body)
        choices = [chunk["choices"][0] for chunk in (events(reply.text)[:-1] if stream else [reply.json()])]
        text = "".join(choice["text"] for choice in choices)
        assert text == "<|assistant|>oneone two three"
        told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        places = [pair for one in told for pair in zip(one["text_offset"], one["tokens"], strict=True)]
        shown = [(at, word) for at, word in places if not word.startswith("<|")]
        assert shown
        assert all(text[at:].startswith(word) for at, word in shown), places
