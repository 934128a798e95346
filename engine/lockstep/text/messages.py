"""Request messages to what a template wants: text parts, object arguments, no null. Thinking settings to one answer."""

from __future__ import annotations

import json
from typing import Any

from lockstep.core.errors import LockstepError
from lockstep.text.template import Thinking

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
_EFFORTS = {"minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max"}


class MessageError(LockstepError):
    """A message that cannot be used; `where` names it in the request, such as `messages.2.content`."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(f"{where}: {text}")
        self.where = where


def template_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as the template reads them. Raises MessageError naming the first that cannot be used."""
    if not messages:
        raise MessageError("messages", "found an empty list; needed: at least one message")
    return [_message(message, f"messages.{at}") for at, message in enumerate(messages)]


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise MessageError(f"{where}.role", f"found {_short(role)}; needed: one of {', '.join(ROLES)}")
    out: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": _content(message.get("content"), f"{where}.content")}
    if role == "user" and message.get("content") is None:
        raise MessageError(f"{where}.content", "a user message needs content")
    if role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            out["reasoning_content"] = reasoning
        calls = message.get("tool_calls") or []
        if calls:
            out["tool_calls"] = [_call(call, f"{where}.tool_calls.{at}") for at, call in enumerate(calls)]
    if role == "tool":
        out["tool_call_id"] = message.get("tool_call_id")
    return out


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise MessageError(where, f"found {type(content).__name__}; needed: a string or a list of parts")
    return "".join(_part(part, f"{where}.{at}") for at, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return part["text"]
    raise MessageError(where, f"found a part of type {_short(kind)}; this server reads text parts: {{'type': 'text', 'text': ...}}")


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise MessageError(where, "needed: an object with function.name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            raise MessageError(f"{where}.function.arguments", "found text that is no JSON; needed: a JSON object") from None
    if not isinstance(arguments or {}, dict):
        raise MessageError(f"{where}.function.arguments", f"found {type(arguments).__name__}; needed: a JSON object")
    return {"id": call.get("id"), "function": {"name": function["name"], "arguments": arguments or {}}}


def settle_thinking(default_on: bool, default_effort: str, effort: str | None, kwargs: dict[str, Any]) -> Thinking:
    """One answer from server defaults, a request's `reasoning_effort` and its template arguments.

    An explicit `enable_thinking` or `thinking` beats an effort, a top-level effort beats one inside the arguments; any effort but `none`
    turns thinking on. Raises MessageError for values outside the known ones.
    """
    asked = effort if effort is not None else kwargs.get("reasoning_effort")
    if asked is not None and asked != "none" and asked not in _EFFORTS:
        raise MessageError("reasoning_effort", f"found {_short(asked)}; needed: one of none, {', '.join(_EFFORTS)}")
    explicit = _switch(kwargs)
    on = explicit if explicit is not None else (asked != "none" if asked is not None else default_on)
    level = asked if asked not in (None, "none") else default_effort
    return Thinking(on, _EFFORTS.get(level, "high"))


def _switch(kwargs: dict[str, Any]) -> bool | None:
    for name in ("enable_thinking", "thinking"):
        value = kwargs.get(name)
        if isinstance(value, dict):
            value = {"enabled": True, "disabled": False}.get(str(value.get("type")))
        if value is not None and not isinstance(value, bool):
            raise MessageError(f"chat_template_kwargs.{name}", f"found {_short(value)}; needed: true or false")
        if value is not None:
            return value
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
