"""Requests of the other dialects with any odd value anywhere become a request to chat, or a refusal in words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from api.test_clients import CODEX, claude_body
from api.test_transcripts import ITEMS, MESSAGE_TURNS
from fixtures.tool_replies import TOOLS
from lockstep.server import messages_form, responses_form
from lockstep.server.body import validate
from lockstep.server.errors import ApiError
from lockstep.server.messages_form import MessagesBody
from lockstep.server.responses_form import ResponsesBody
from lockstep.server.schema import ChatBody

ODD: list[Any] = [
    None, True, 0, -1, 1.5, "", "x", [], {}, [None], [1], ["x"], [[]], [{}], {"a": None}, 10**9,
    {"type": "x"}, {"type": 5}, {"type": []}, {"type": "function"}, {"type": "text"}, {"type": "tool_result"},
    {"type": "image", "source": 5},
]  # fmt: skip
SCHEMA = {"type": "object", "properties": {}}
RESPONSES: list[dict[str, Any]] = [
    CODEX | {"input": ITEMS},
    {
        "input": [{"role": "assistant", "content": "a"}, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]}],
        "tools": [{"type": "function", **TOOLS[2]["function"]}], "reasoning": {"effort": "low"},
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    },
]  # fmt: skip
MESSAGES: list[dict[str, Any]] = [
    claude_body(MESSAGE_TURNS, 1),
    {
        "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]}],
        "max_tokens": 5, "thinking": {"type": "enabled", "budget_tokens": 5}, "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "tool", "name": "f"}, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
]  # fmt: skip


def from_responses(body: dict[str, Any]) -> ChatBody:
    return responses_form.chat_form(validate(body, ResponsesBody), [])


def from_messages(body: dict[str, Any]) -> ChatBody:
    return messages_form.chat_form(validate(body, MessagesBody), False)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def put(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    changed = holder = copy.deepcopy(value)
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = odd
    return changed


@pytest.mark.parametrize(("read", "body"), [(from_responses, body) for body in RESPONSES] + [(from_messages, body) for body in MESSAGES])
def test_any_odd_value_anywhere_is_read_or_refused_in_words(read: Callable[[dict[str, Any]], ChatBody], body: dict[str, Any]) -> None:
    assert read(body).messages
    read_so, refusals = 0, list[ApiError]()
    for path in places(body):
        for odd in ODD:
            try:
                read(put(body, path, odd))
                read_so += 1
            except ApiError as error:
                refusals.append(error)
    assert min(read_so, len(refusals)) > 100
    assert {error.status for error in refusals} == {400}
    assert max(len(error.message) for error in refusals) < 1000
