"""Replies as the OpenAPI document describes them, and the route settings that put them there. Nothing is built with these at run time."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    error: ErrorDetail


class PromptDetails(BaseModel):
    cached_tokens: int


class ReplyDetails(BaseModel):
    reasoning_tokens: int


class UsageReply(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: ReplyDetails


class Figures(BaseModel):
    """Times in seconds. `token_sha`: first 12 hex digits of SHA-256 over the reply's ids, decimal, joined by commas."""

    token_sha: str
    time_to_first_token_s: float | None
    tokens_per_s: float | None
    queued_s: float
    prefill_s: float
    decode_s: float
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    state_hash: str | None = None
    stop_sequence: str | None = None
    thinking_budget_used_up: bool | None = None
    loop_tokens: int | None = None
    choices: list[Figures] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CalledFunction(BaseModel):
    """`arguments`: JSON text of an object."""

    name: str
    arguments: str


class CallReply(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ReplyMessage(BaseModel):
    """`content` is null if the reply holds calls only."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[CallReply] | None = None


class ChatChoice(BaseModel):
    index: int
    message: ReplyMessage
    logprobs: dict[str, Any] | None
    finish_reason: ChatFinishReason


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: FinishReason


class _Completion(BaseModel):
    id: str
    created: int
    model: str
    usage: UsageReply
    lockstep: Figures


class ChatCompletion(_Completion):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextCompletion(_Completion):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class MessageReply(BaseModel):
    """Anthropic's message; `lockstep` as in a chat completion."""

    model_config = ConfigDict(extra="allow")
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: dict[str, int]


class CountedTokens(BaseModel):
    input_tokens: int


class ResponseReply(BaseModel):
    """OpenAI's response; `lockstep` as in a chat completion."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["response"]
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class Deleted(BaseModel):
    id: str
    object: str
    deleted: bool


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int
    context_length: int
    input_modalities: list[str]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class Tokens(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenizerInfo(BaseModel):
    eos_token: str
    bos_token: str | None
    pad_token: str
    chat_template: str
    vocab_size: int
    max_model_len: int


class Text(BaseModel):
    prompt: str


class Streams(BaseModel):
    running: int
    paused: int
    waiting: int
    max: int


class Health(BaseModel):
    """With keys and without a good one only `status` is shown. `status`: ok, loading, draining, stalled or dead."""

    model_config = ConfigDict(extra="allow")
    status: str
    ok: bool | None = None
    cause: str | None = None
    streams: Streams | None = None


class Readiness(BaseModel):
    ready: bool
    reason: str | None = None


class Version(BaseModel):
    version: str
    engine: str | None
    build: str | None


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
