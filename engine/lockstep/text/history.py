"""A conversation in the client's words into the shape chat templates read. Knows no template and no HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

THINK_CLOSE = "</think>"
THINK_OPEN = "<think>"

Message = dict[str, Any]


def normalise(messages: Sequence[Message]) -> list[Message]:
    """Messages with null content as "", `developer` as `system`, call arguments as objects, reasoning in its own field.

    A past call whose arguments are no JSON object is left out together with its result: one bad call must not end a session.
    """
    shaped = [_shape(message) for message in messages]
    dropped: set[str] = set()
    for message in shaped:
        message["tool_calls"] = _usable_calls(message.get("tool_calls") or [], dropped)
        if not message["tool_calls"]:
            del message["tool_calls"]
    return [message for message in shaped if message["role"] != "tool" or message.get("tool_call_id") not in dropped]


def _shape(message: Message) -> Message:
    shaped = {key: value for key, value in message.items() if value is not None}
    shaped["role"] = "system" if message["role"] == "developer" else message["role"]
    shaped["content"] = _join(message.get("content"))
    if shaped["role"] == "assistant":
        _lift_reasoning(shaped)
    return shaped


def _join(content: str | list[Any] | None) -> str:
    """Text parts are glued as they stand."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part if isinstance(part, str) else part["text"] for part in content)


def _lift_reasoning(message: Message) -> None:
    """Clients that keep whole replies send reasoning inside the content; templates look for it by spelling, which we hide from them."""
    message.setdefault("reasoning_content", message.pop("reasoning", None) or "")
    if not message["reasoning_content"] and THINK_CLOSE in message["content"]:
        thought, _, answer = message["content"].rpartition(THINK_CLOSE)
        message["reasoning_content"] = thought.removeprefix(THINK_OPEN)
        message["content"] = answer
    if not message["reasoning_content"]:
        del message["reasoning_content"]


def _usable_calls(calls: Sequence[Message], dropped: set[str]) -> list[Message]:
    usable = []
    for call in calls:
        arguments = _arguments(call["function"].get("arguments"))
        if arguments is None:
            dropped.add(call.get("id") or "")
        else:
            usable.append({**call, "function": {**call["function"], "arguments": arguments}})
    return usable


def _arguments(value: Any) -> dict[str, Any] | None:
    """Arguments as an object; "" and null are no arguments; None if they are anything else."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None
