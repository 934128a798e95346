"""The Responses request in the words of chat, so that tools, pictures, reuse and recovery are the same. Knows shapes, no endpoint."""

import logging
import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field, StrictBool

from lockstep.server.body import validate
from lockstep.server.errors import refuse
from lockstep.server.schema import HEARD, MAX_TOKEN_ID, Body, ChatBody
from lockstep.server.unsupported import refuse_values

Item = dict[str, Any]

# Work of tools that are not served. Histories of other servers hold it; it is left out as its tools are.
_FOREIGN = re.compile(r"[a-z_]+_call(_output)?|mcp_[a-z_]+|compaction|item_reference")
_LOGPROBS = "message.output_text.logprobs"
_REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,), "conversation": (), "prompt": (), "truncation": ("disabled",), "top_logprobs": (0,), "logprobs": (False,),
    "n": (1,),
}  # fmt: skip
HEARD.update(_REFUSED)
_OWN = {
    "model", "input", "instructions", "tools", "tool_choice", "max_output_tokens", "reasoning", "text", "store", "previous_response_id",
    "include", "metadata", "messages", *_REFUSED,
}  # fmt: skip


class ResponsesBody(Body):
    """`POST /v1/responses`. Sampling fields and extensions are those of chat; tools of types that are not served are left out."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKEN_ID)
    stream: StrictBool | None = None
    store: StrictBool | None = Field(None, description="false: the reply cannot be asked for or continued by its id.")
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def items(self) -> list[Item]:
        """The input as items. Without any it is an empty message of the user: some clients probe a server so."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input or []


def chat_form(body: ResponsesBody, earlier: Sequence[Item]) -> ChatBody:
    """The same request to chat, behind the items of `earlier` replies. Raises ApiError 400 naming the place."""
    extra = body.model_extra or {}
    refuse_values(extra, _REFUSED)
    if _LOGPROBS in (body.include or ()):
        refuse("include", f"asks for {_LOGPROBS}; needed: `logprobs` of /v1/chat/completions")
    if body.input is None and not body.previous_response_id:
        refuse("input", "is missing; needed: a string or a list of items")
    chat = {name: value for name, value in extra.items() if name not in _OWN}
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    places = ["instructions"] * len(messages)
    for place, item in enumerate([*earlier, *body.items]):
        _add(messages, item, f"input[{place - len(earlier)}]")
        places += [f"input[{place - len(earlier)}]"] * (len(messages) - len(places))
    chat["messages"] = messages or [{"role": "user", "content": ""}]
    chat["stream"], chat["reasoning_effort"] = body.stream, (body.reasoning or {}).get("effort")
    chat["response_format"] = _format((body.text or {}).get("format"))
    chat |= {"tools": _tools(body.tools or ()) or None, "tool_choice": body.tool_choice}
    names = {f"messages[{at}]": place for at, place in enumerate(places)}
    return validate(chat, ChatBody, names | {"reasoning_effort": "reasoning.effort"})


def _add(messages: list[dict[str, Any]], item: Item, where: str) -> None:
    """One item. What an assistant thought, said and called between two other turns is one message."""
    match item.get("type", "message"):
        case "message" if item.get("role") == "assistant":
            turn = _assistant(messages)
            turn["content"] = (turn["content"] or "") + _text(item.get("content"), where)
        case "message":
            if item.get("role") not in ("user", "system", "developer"):
                refuse(f"{where}.role", "is unknown; needed: user, assistant, system or developer")
            messages.append({"role": item.get("role"), "content": _parts(item.get("content"), where)})
        case "reasoning":
            turn, said = _assistant(messages), item.get("content") or item.get("summary") or []
            if not isinstance(said, list) or not all(isinstance(part, dict) for part in said):
                refuse(where, "holds no list of parts; needed: content or summary of the form that replies have")
            turn["reasoning_content"] = turn.get("reasoning_content", "") + "".join(str(part.get("text") or "") for part in said)
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            _assistant(messages).setdefault("tool_calls", []).append({"id": item.get("call_id"), "type": "function", "function": function})
        case "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": _parts(item.get("output"), where)})
        case str(kind) if _FOREIGN.fullmatch(kind):
            logging.getLogger("lockstep.server").warning("an item of a tool that is not served was left out of a prompt")
        case _:
            refuse(f"{where}.type", "is not served; needed: message, reasoning, function_call or function_call_output")


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _text(content: Any, where: str) -> str:
    parts = _parts(content, where)
    return parts if isinstance(parts, str) else "".join(part.get("text", "") for part in parts)


def _parts(content: Any, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(where, "has neither a string nor a list of parts as its content; needed: one of the two")
    return [_part(part, f"{where}.content[{place}]") for place, part in enumerate(content)]


def _part(part: Any, where: str) -> dict[str, Any]:
    """A text or a picture. A picture keeps the name of its place, for what is wrong with it."""
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            found = {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            found = {"type": "image_url", "image_url": {"url": url, "detail": part.get("detail")}, "place": where}
        case _:
            refuse(where, "is of a form not served; needed: input_text, output_text, or input_image with a data URL")
    return found


def _format(wanted: Any) -> Any:
    """Flat here, nested in chat."""
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        return wanted
    return {"type": "json_schema", "json_schema": {name: value for name, value in wanted.items() if name != "type"}}


def _tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Functions, nested as chat has them."""
    return [
        {"type": "function", "function": {name: value for name, value in tool.items() if name != "type" and value is not None}}
        for tool in tools
        if tool.get("type") == "function"
    ]
