"""`POST /v1/chat/completions`."""

from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lockstep.server.album import read_album
from lockstep.server.body import read_model
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.documents import ChatCompletion, inference_route
from lockstep.server.errors import bad_request
from lockstep.server.generation import Generation, PromptIds, engine_request, loop_limit, reply_id, tokenised
from lockstep.server.logprobs import Rows, chat_logprobs
from lockstep.server.replies import Choice, reply_events, whole_reply
from lockstep.server.schema import ChatBody, TokenizeBody
from lockstep.server.stream import EventStream, unless_client_leaves
from lockstep.server.structured import reply_grammar
from lockstep.server.turns import ChatMessage
from lockstep.text.errors import TextError
from lockstep.text.reply import Delta, ReplyText
from lockstep.text.template import Prompt
from lockstep.text.thinking import choose_thinking
from lockstep.text.tokenizer import Tokenizer
from lockstep.text.tools import ToolCall, Tools
from lockstep.text.toolset import Toolset

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions", **inference_route(ChatBody, ChatCompletion))
async def chat_completions(request: Request) -> Response:
    """Continue a conversation. With `stream` the reply comes as server-sent events, one for each round of the engine."""
    site = deployment(request)
    site.require_ready()
    body = await read_model(request, ChatBody, site.body_bytes)
    site.require_model(body.model)
    # From here on there is work, pictures to decode first, that nobody needs once the client has left.
    return await unless_client_leaves(request, _reply(request, site, body))


async def _reply(request: Request, site: Deployment, body: ChatBody) -> Response:
    generations = await chat_generations(request, site, body, Ask(reply_id("chatcmpl-"), "chat", "messages", body.reply_tokens))
    dialects = [ChatDialect(site.tokenizer, place) for place in range(len(generations))]
    if body.stream:
        return EventStream(reply_events(generations, dialects, site.options.name, body))
    return await whole_reply(generations, dialects, site.options.name, body)


@dataclass(frozen=True, slots=True)
class Ask:
    """What an endpoint adds to a conversation: the reply's id, its own name, the field the conversation came in, reply tokens wanted."""

    id: str
    route: str
    param: str
    wanted: int | None


async def chat_generations(request: Request, site: Deployment, body: ChatBody, ask: Ask) -> list[Generation]:
    """The replies to a conversation, one for each choice; the one way to them for all dialects. Raises ApiError."""
    namespace = site.namespace(request, body.cache_salt)
    prompt = await chat_prompt(request, body, body.messages, site.context, not body.continue_final_message, namespace)
    closing = (body.budget, site.tokenizer.think_close) if body.budget is not None and prompt.in_reasoning else None
    grammar = await reply_grammar(request, body, prompt.in_reasoning)
    ids = PromptIds(prompt.ids, ask.param, namespace, prompt.marks, site.owner(request), prompt.pictures, closing, grammar)
    generations = list[Generation]()
    for choice in range(body.n or 1):
        name = f"{ask.id}/{choice}" if choice else ask.id
        engine = engine_request(site, body, ids, name, ask.wanted, choice)
        tools, most = _tools(site, body, ids, choice), loop_limit(site, body)
        text = ReplyText(site.tokenizer, body.stop or (), prompt.in_reasoning, tools=tools, loop_limit=most)
        generations.append(Generation(site, engine, text, ask.route, ask.param, choice))
    return generations


async def chat_prompt(
    request: Request,
    body: ChatBody | TokenizeBody,
    messages: list[ChatMessage],
    limit: int,
    add_generation_prompt: bool = True,
    owner: str = "",
) -> Prompt:
    """The ids a conversation becomes; the one way to them, for replies and for `/tokenize`. Raises ApiError 400 far past `limit` tokens.

    `owner` see `ChatTemplate.prompt`."""
    site = deployment(request)
    thinking = choose_thinking(site.thinking, body.thinking_switch, body.effort)
    album = await read_album(request, messages, owner)

    def render() -> Prompt:
        told = (thinking, body.clear_thinking, add_generation_prompt, limit, body.offered_tools, owner, album.placeholders)
        return site.template.prompt(album.messages, *told)

    prompt = await tokenised(request, render, "messages", site.context)
    return replace(prompt, pictures=album.pictures(prompt))


def _tools(site: Deployment, body: ChatBody, prompt: PromptIds, choice: int) -> Tools | None:
    """What the reply may call. Raises ApiError 400 for a checkpoint that cannot."""
    if not body.offered_tools:
        return None
    try:
        key = prompt.digest.hex() + (f"/{choice}" if choice else "")
        return Tools.of(site.tokenizer, Toolset(body.offered_tools), body.parallel_tool_calls is not False, key)
    except TextError as error:
        raise bad_request(f"{error}.", "tools") from None


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class ChatDialect:
    """Messages and deltas. A call is one delta, whole."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, index: int = 0) -> None:
        self._tokenizer, self._index = tokenizer, index

    def opening(self) -> list[Choice]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def pieces(self, delta: Delta) -> list[Choice]:
        return [choice for piece in delta.in_order for choice in self._pieces(piece)]

    def _pieces(self, delta: Delta) -> list[Choice]:
        named = (("reasoning_content", delta.reasoning), ("content", delta.content))
        texts = [self._chunk({name: text}) for name, text in named if text]
        return texts + [self._chunk({"tool_calls": [{"index": call.index} | _call(call)]}) for call in delta.calls]

    def idle(self) -> Choice:
        return self._chunk({})

    def closing(self, reason: str) -> Choice:
        return self._chunk({}, reason)

    def whole(self, delta: Delta, reason: str) -> Choice:
        message: dict[str, Any] = {"role": "assistant", "content": delta.content or (None if delta.calls else "")}
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        if delta.calls:
            message["tool_calls"] = [_call(call) for call in delta.calls]
        return {"index": self._index, "message": message, "logprobs": None, "finish_reason": reason}

    def logprobs(self, rows: Rows) -> dict[str, Any] | None:
        return chat_logprobs(self._tokenizer, rows)

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> Choice:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": reason}
