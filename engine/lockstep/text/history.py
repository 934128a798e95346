"""A conversation in the client's words into the shape chat templates read. Knows no template and no HTTP."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.text.toolset import strict_json

THINK_CLOSE = "</think>"
THINK_OPEN = "<think>"

Message = dict[str, Any]

log = logging.getLogger("lockstep.text")


def normalise(messages: Sequence[Message], recall: Callable[[str], str | None] = lambda call: None) -> list[Message]:
    """Messages with null content as "", `developer` as `system`, call arguments as objects, reasoning in its own field.

    `recall` knows the thought that led to a call of some id, for a client that sends the call without it.

    A past call that is no call of a function, or whose arguments are no JSON object, is left out together with its result: one
    bad call must not end a session.
    """
    kept: list[Message] = []
    dropped: set[str] = set()
    for message in map(_shape, messages):
        if message["role"] == "assistant":
            calls, dropped = _usable_calls(message.pop("tool_calls", ()))
            if calls and "reasoning_content" not in message and (thought := recall(str(calls[0].get("id")))):
                message["reasoning_content"] = thought
            kept.append(message | ({"tool_calls": calls} if calls else {}))
        elif message["role"] != "tool" or message.get("tool_call_id") not in dropped:
            kept.append(message)
    return kept


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


def _usable_calls(calls: Sequence[Any]) -> tuple[list[Message], set[str]]:
    """Calls a template can print, and the ids of the others. An id that both have names results of the usable one."""
    usable: list[Message] = []
    dropped: set[str] = set()
    for call in calls:
        call = call if isinstance(call, dict) else {}
        function = call["function"] if isinstance(call.get("function"), dict) else {}
        name, arguments = function.get("name"), _arguments(function.get("arguments"))
        if isinstance(name, str) and name and arguments is not None:
            usable.append({**call, "function": {"name": name, "arguments": arguments}})
        else:
            log.warning("an earlier call that is no call of a function with an object of arguments was left out of a prompt")
            dropped.add(str(call.get("id")))
    return usable, dropped - {str(call.get("id")) for call in usable}


def _arguments(value: Any) -> dict[str, Any] | None:
    """Arguments as an object; "" and null are no arguments; None if they are anything else."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = strict_json(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None
