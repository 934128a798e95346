"""Anthropic's request in the words of chat, so that tools, pictures, reuse and recovery are the same. Knows shapes, no endpoint."""

import re
from typing import Any

from pydantic import Field, StrictBool

from lockstep.media.limits import LIMITS
from lockstep.server.body import validate
from lockstep.server.errors import refuse
from lockstep.server.schema import HEARD, MAX_TOKEN_ID, Body, ChatBody
from lockstep.server.unsupported import refuse_values

# A client's own line with a number that changes every time: no part of what the model is told, and no prompt would ever repeat.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REFUSED: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],), "n": (1,), "logprobs": (False,)}
HEARD.update([*_REFUSED, "output_format"])
_OWN = {
    "model", "max_tokens", "messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config",
    "context_management", "output_format", "n",
}  # fmt: skip
# Fields of chat as they are called here, for who sent them.
_NAMES = {
    "stop": "stop_sequences", "reasoning_effort": "output_config.effort", "thinking_budget": "thinking.budget_tokens",
}  # fmt: skip
_KEPT_THOUGHTS = {"type": "clear_thinking_20251015", "keep": "all"}


class MessagesBody(Body):
    """`POST /v1/messages`. Sampling fields and extensions are those of chat."""

    model: str | None = Field(None, description="Names that begin with `claude-` stand for the served model.")
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1 << 14)
    system: str | list[dict[str, Any]] | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKEN_ID)
    stop_sequences: list[str] | None = None
    stream: StrictBool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = Field(
        None, description="enabled, with or without budget_tokens; disabled; adaptive: the server's default."
    )
    output_config: dict[str, Any] | None = Field(None, description="effort, and format of type json_schema.")
    context_management: dict[str, Any] | None = Field(None, description="Thoughts of earlier turns are kept; nothing else is served.")


def chat_form(body: MessagesBody, thinks: bool) -> ChatBody:
    """The same request to chat. `thinks`: the server's own default. Raises ApiError 400 naming the place."""
    extra = body.model_extra or {}
    refuse_values(extra, _REFUSED)
    chat = {name: value for name, value in extra.items() if name not in (*_OWN, "service_tier", "metadata")}
    places = [(message, f"messages[{place}]") for place, message in enumerate(body.messages)]
    turns = [{"place": where} | turn for message, where in places for turn in _turns(message, where)]
    chat["messages"] = _system(body.system) + turns
    chat["continue_final_message"] = turns[-1]["role"] == "assistant"
    chat["stream"], chat["stop"] = body.stream, body.stop_sequences
    chat |= _thinking(body, thinks) | _tools(body)
    edits = (body.context_management or {}).get("edits") or []
    if not isinstance(edits, list) or any(edit != _KEPT_THOUGHTS for edit in edits):
        refuse("context_management", f"has edits that are not served; needed: none, or {_KEPT_THOUGHTS}")
    return validate(chat, ChatBody, _NAMES | {f"messages[{at}]": turn.get("place", "system") for at, turn in enumerate(chat["messages"])})


def _system(value: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    texts = [value] if isinstance(value, str) else [_text(block, f"system[{at}]") for at, block in enumerate(value or ())]
    kept = [text for text in (_BILLING.sub("", text) for text in texts) if text]
    return [{"role": "system", "content": [{"type": "text", "text": text} for text in kept]}] if kept else []


def _text(block: Any, where: str) -> str:
    if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
        refuse(where, 'is of another form; needed: {"type": "text", "text": "..."}')
    return block["text"]


def _turns(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """A message as messages of chat: each tool's result is one of its own, in order."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        refuse(f"{where}.role", 'is unknown; needed: "user" or "assistant"')
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        refuse(f"{where}.content", "is neither a string nor a list of blocks; needed: one of the two")
    places = [(block, f"{where}.content[{at}]") for at, block in enumerate(content)]
    return [_said(places)] if role == "assistant" else _told(places, str(role))


def _said(places: list[tuple[Any, str]]) -> dict[str, Any]:
    """An assistant's turn."""
    parts, thoughts, calls = list[dict[str, Any]](), list[str](), list[dict[str, Any]]()
    for block, at in places:
        match block.get("type") if isinstance(block, dict) else None:
            case "thinking":
                thoughts.append(str(block.get("thinking") or ""))
            case "tool_use":
                function = {"name": block.get("name"), "arguments": block.get("input")}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "text":
                parts.append({"type": "text", "text": _text(block, at)})
            case _:
                refuse(at, "is of a type not served; needed: text, thinking or tool_use")
    turn: dict[str, Any] = {"role": "assistant", "content": parts}
    return turn | ({"reasoning_content": "".join(thoughts)} if any(thoughts) else {}) | ({"tool_calls": calls} if calls else {})


def _told(places: list[tuple[Any, str]], role: str) -> list[dict[str, Any]]:
    """What a user or a tool says."""
    turns = list[dict[str, Any]]()
    for block, at in places:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            content = block.get("content")
            if isinstance(content, list):
                content = [_part(part, f"{at}.content[{place}]") for place, part in enumerate(content)]
            turns.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content, "place": at})
            continue
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"].append(_part(block, at))
    return turns or [{"role": role, "content": ""}]


def _part(block: Any, where: str) -> dict[str, Any]:
    """A text or a picture. A picture keeps the name of its place, for what is wrong with it."""
    if not isinstance(block, dict) or block.get("type") != "image":
        if isinstance(block, dict) and block.get("type") in ("document", "search_result", "container_upload"):
            refuse(where, f"is a {block['type']}, which is not served; needed: text or an image")
        return {"type": "text", "text": _text(block, where)}
    source = block.get("source")
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            if len(data) > LIMITS["picture"].file_bytes * 3 // 2:
                refuse(where, f"has more than {LIMITS['picture'].file_bytes} bytes; needed: a smaller picture")
            url = f"data:{kind};base64,{data}"
        case {"type": "url", "url": str(url)}:
            pass
        case _:
            refuse(where, 'has another source than {"type": "base64", "media_type": "image/...", "data": "..."}; needed: that')
    return {"type": "image_url", "image_url": {"url": url}, "place": where}


def _thinking(body: MessagesBody, thinks: bool) -> dict[str, Any]:
    """An effort alone does not make this dialect think."""
    told = body.thinking or {}
    kind = told.get("type", "adaptive")
    if kind not in ("enabled", "disabled", "adaptive"):
        refuse("thinking.type", "is unknown; needed: enabled, disabled or adaptive")
    config = body.output_config or {}
    fields: dict[str, Any] = {
        "enable_thinking": thinks if kind == "adaptive" else kind == "enabled",
        "reasoning_effort": config.get("effort"),
    }
    if kind == "enabled" and told.get("budget_tokens") is not None:
        fields["thinking_budget"] = told["budget_tokens"]
    # The second is what a beta called it.
    if wanted := config.get("format") or (body.model_extra or {}).get("output_format"):
        if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
            refuse("output_config.format", 'is of a type not served; needed: {"type": "json_schema", "schema": {...}}')
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": wanted.get("schema")}}
    return fields


def _tools(body: MessagesBody) -> dict[str, Any]:
    tools = list[dict[str, Any]]()
    for place, tool in enumerate(body.tools or ()):
        if (tool.get("type") or "custom") != "custom":
            refuse(f"tools[{place}]", "runs on the server of its maker; needed: tools with an input_schema, which the client runs")
        function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("input_schema")}
        function["strict"] = tool.get("strict")
        tools.append({"type": "function", "function": {name: value for name, value in function.items() if value is not None}})
    if not (choice := body.tool_choice):
        return {"tools": tools or None}
    if choice.get("type") == "tool":
        chosen: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif (kind := str(choice.get("type"))) in _CHOICES:
        chosen = _CHOICES[kind]
    else:
        refuse("tool_choice.type", "is unknown; needed: auto, any, tool or none")
    is_single = choice.get("disable_parallel_tool_use")
    if not isinstance(is_single, bool | None):
        refuse("tool_choice.disable_parallel_tool_use", "is neither true nor false; needed: one of the two")
    return {"tools": tools or None, "tool_choice": chosen, "parallel_tool_calls": not is_single}
