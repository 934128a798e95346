"""Replies as the OpenAPI document describes them, and the route settings that put them there. Nothing is built with these at run time."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, create_model

Shape = type[BaseModel]


def _shape(name: str, note: str | None = None, /, base: type[BaseModel] | None = None, is_open: bool = False, **kinds: Any) -> Shape:
    """A shape of fields that are all there, but for those in `_maybe`; of an open one others too."""
    more: dict[str, Any] = {"__doc__": note, "__base__": base, "__config__": ConfigDict(extra="allow") if is_open else None}
    more |= {field: kind if isinstance(kind, tuple) else (kind, ...) for field, kind in kinds.items()}
    return create_model(name, **more)


def _maybe(kind: Any) -> tuple[Any, None]:
    return kind | None, None


_TEXT = str | None
_OBJECT = dict[str, Any]
_Error = _shape("ErrorDetail", message=str, type=str, param=_TEXT, code=_TEXT)
ErrorReply = _shape("ErrorReply", error=_Error)
_Read, _Written = _shape("PromptDetails", cached_tokens=int), _shape("ReplyDetails", reasoning_tokens=int)
_Usage = _shape(
    "UsageReply", prompt_tokens=int, completion_tokens=int, total_tokens=int, prompt_tokens_details=_Read,
    completion_tokens_details=_Written,
)  # fmt: skip
_OneFigures = _shape(
    "ChoiceFigures", token_sha=str, time_to_first_token_s=float | None, tokens_per_s=float | None, queued_s=float, prefill_s=float,
    decode_s=float, rounds=int, drafted_tokens=int, accepted_tokens=int, state_hash=_maybe(str), stop_sequence=_maybe(str),
    thinking_budget_used_up=_maybe(bool), loop_tokens=_maybe(int), prompt_token_ids=_maybe(list[int]), token_ids=_maybe(list[int]),
)  # fmt: skip
_FIGURES_NOTE = "Times in seconds. `token_sha`: first 12 hex digits of SHA-256 over the reply's ids, decimal, joined by commas."
_Figures = _shape("Figures", _FIGURES_NOTE, base=_OneFigures, choices=_maybe(list[_OneFigures]))
_Called = _shape("CalledFunction", "`arguments`: JSON text of an object.", name=str, arguments=str)
_Call = _shape("CallReply", id=str, type=Literal["function"], function=_Called)
_Message = _shape(
    "ReplyMessage", "`content` is null if the reply holds calls only.", role=Literal["assistant"], content=_TEXT,
    reasoning_content=_maybe(str), tool_calls=_maybe(list[_Call]),
)  # fmt: skip
_IDS = _maybe(list[int])
_Choice = _shape("Choice", index=int, logprobs=_OBJECT | None, prompt_token_ids=_IDS, token_ids=_IDS)
_ChatChoice = _shape("ChatChoice", base=_Choice, message=_Message, finish_reason=Literal["stop", "length", "tool_calls"])
_TextChoice = _shape("TextChoice", base=_Choice, text=str, finish_reason=Literal["stop", "length"])
_Completion = _shape("Completion", id=str, created=int, model=str, usage=_Usage, lockstep=_Figures, prompt_token_ids=_IDS)
ChatCompletion = _shape("ChatCompletion", base=_Completion, object=Literal["chat.completion"], choices=list[_ChatChoice])
TextCompletion = _shape("TextCompletion", base=_Completion, object=Literal["text_completion"], choices=list[_TextChoice])
MessageReply = _shape(
    "MessageReply", "Anthropic's message; `lockstep` as in a chat completion.", is_open=True, id=str, type=Literal["message"],
    role=Literal["assistant"], model=str, content=list[_OBJECT], stop_sequence=_TEXT, usage=dict[str, int],
    stop_reason=Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"],
)  # fmt: skip
CountedTokens = _shape("CountedTokens", input_tokens=int)
InputTokens = _shape("InputTokens", object=Literal["response.input_tokens"], input_tokens=int)
ResponseReply = _shape(
    "ResponseReply", "OpenAI's response; `lockstep` as in a chat completion.", is_open=True, id=str, object=Literal["response"], model=str,
    status=Literal["completed", "incomplete", "in_progress", "failed"], output=list[_OBJECT], usage=_OBJECT | None,
)  # fmt: skip
Deleted = _shape("Deleted", id=str, object=str, deleted=bool)
ModelCard = _shape(
    "ModelCard", id=str, object=Literal["model"], created=int, owned_by=str, root=str, max_model_len=int, context_length=int,
    input_modalities=list[str],
    type=Literal["model"], display_name=str, created_at=str, max_input_tokens=int, max_tokens=int,
)  # fmt: skip
ModelList = _shape("ModelList", object=Literal["list"], data=list[ModelCard], has_more=bool, first_id=str, last_id=str)
Tokens = _shape("Tokens", count=int, max_model_len=int, tokens=list[int], token_strs=_maybe(list[str]))
TokenizerInfo = _shape("TokenizerInfo", eos_token=str, bos_token=_TEXT, pad_token=str, chat_template=str, vocab_size=int, max_model_len=int)
Text = _shape("Text", prompt=str)
_Streams = _shape("Streams", running=int, paused=int, waiting=int, max=int)
Health = _shape(
    "Health", "With keys and without a good one only `status` is shown: ok, loading, draining, stalled or dead.", is_open=True, status=str,
    ok=_maybe(bool), cause=_maybe(str), streams=_maybe(_Streams),
)  # fmt: skip
Readiness = _shape("Readiness", ready=bool, reason=_maybe(str))
Version = _shape("Version", version=str, engine=_TEXT, build=_TEXT)

_WORDS = {
    400: "The request has to change; `param` names the field",
    401: "A key is needed",
    404: "No such model, or no such stored reply",
    413: "Body too large",
    415: "Body is compressed",
    429: "All slots and the queue are taken; see Retry-After",
    500: "The engine could not finish",
    503: "Loading, draining or down",
    504: "The deadline of the request passed before its first token",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` entries of a route."""
    return {status: {"model": ErrorReply, "description": _WORDS[status]} for status in statuses}


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its own body."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def inference_route(body: type[BaseModel], reply: type[BaseModel]) -> dict[str, Any]:
    """Settings of a route that generates, whole or streamed."""
    streamed = {"text/event-stream": {"schema": {"type": "string", "description": "`data:` events of chunks, the last `data: [DONE]`"}}}
    found = {200: {"model": reply, "description": "A reply; with `stream` its events", "content": streamed}}
    return {"openapi_extra": body_of(body), "responses": found | errors(400, 401, 404, 413, 415, 429, 500, 503, 504)}
