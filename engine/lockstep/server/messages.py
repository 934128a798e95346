"""`POST /v1/messages` and `/v1/messages/count_tokens`, Anthropic's words for a conversation and its reply."""

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lockstep.server.blocks import BlockWriter, Event, Kind, block_events, whole_blocks
from lockstep.server.body import aside, read_model
from lockstep.server.chat import Ask, chat_generations
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.documents import CountedTokens, MessageReply, inference_route
from lockstep.server.errors import ApiError
from lockstep.server.generation import Generation, reply_id
from lockstep.server.messages_form import MessagesBody, chat_form
from lockstep.server.replies import usage_of
from lockstep.server.schema import ChatBody
from lockstep.server.stream import EventStream, Json, named_event, unless_client_leaves
from lockstep.server.tokenize import conversation_tokens
from lockstep.text.tools import ToolCall

router = APIRouter(tags=["messages"])


@router.post("/v1/messages", **inference_route(MessagesBody, MessageReply))
async def messages(request: Request) -> Response:
    """Continue a conversation. With `stream` the reply comes as named server-sent events."""
    site = deployment(request)
    site.require_ready()
    body, chat = await _read(request, site)
    return await unless_client_leaves(request, _reply(request, site, body, chat))


@router.post("/v1/messages/count_tokens", **inference_route(MessagesBody, CountedTokens))
async def count_tokens(request: Request) -> Response:
    """Tokens of a conversation as a generation would render it."""
    site = deployment(request)
    _, chat = await _read(request, site)
    return await unless_client_leaves(request, _count(request, site, chat))


async def _read(request: Request, site: Deployment) -> tuple[MessagesBody, ChatBody]:
    body = await read_model(request, MessagesBody, site.body_bytes)
    # Clients of Anthropic name its models for small tasks whatever they are told to use.
    if not (body.model or "").startswith("claude-"):
        site.require_model(body.model)
    return body, await aside(request, lambda: chat_form(body, site.thinking.enabled))


async def _count(request: Request, site: Deployment, chat: ChatBody) -> Response:
    return Json({"input_tokens": await conversation_tokens(request, site, chat)})


async def _reply(request: Request, site: Deployment, body: MessagesBody, chat: ChatBody) -> Response:
    [generation] = await chat_generations(
        request, site, chat, Ask(reply_id("msg_"), "messages", "messages", body.max_tokens or chat.reply_tokens)
    )
    writer = MessageWriter(generation, body.model or site.options.name, bool(chat.return_token_ids))
    if body.stream:
        return EventStream(block_events(generation, writer), failure=_failure, alive=named_event(_PING))
    return await whole_blocks(generation, writer)


_PING: Event = {"type": "ping"}


def _failure(error: ApiError) -> bytes:
    return named_event(error.anthropic_body())


class MessageWriter(BlockWriter):
    """Content blocks and their events."""

    def __init__(self, generation: Generation, model: str, with_ids: bool = False) -> None:
        super().__init__()
        self._generation, self._model, self._with_ids = generation, model, with_ids

    def begin(self) -> list[Event]:
        message = self._message(None, None)
        return [{"type": "message_start", "message": message | {"usage": message["usage"] | {"output_tokens": 0}}}, _PING]

    def opened(self, kind: Kind) -> list[Event]:
        return [{"type": "content_block_start", "index": len(self.blocks), "content_block": _block(kind, "")}]

    def grew(self, kind: Kind, text: str) -> Event:
        delta = {"type": "thinking_delta", "thinking": text} if kind == "thought" else {"type": "text_delta", "text": text}
        return {"type": "content_block_delta", "index": len(self.blocks), "delta": delta}

    def closed(self, kind: Kind, text: str, is_last: bool) -> list[Event]:
        self.blocks.append(_block(kind, text))
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def called(self, call: ToolCall) -> list[Event]:
        index, block = len(self.blocks), {"type": "tool_use", "id": call.id.replace("call_", "toolu_"), "name": call.name}
        self.blocks.append(block | {"input": json.loads(call.arguments)})
        delta = {"type": "input_json_delta", "partial_json": call.arguments}
        return [
            {"type": "content_block_start", "index": index, "content_block": block | {"input": {}}},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]

    def end(self) -> list[Event]:
        reason, stop = self._stopped()
        told = {"delta": {"stop_reason": reason, "stop_sequence": stop}, "usage": self._usage()}
        return [{"type": "message_delta"} | told | {"lockstep": self._generation.figures(self._with_ids)}, {"type": "message_stop"}]

    def whole(self) -> dict[str, Any]:
        return self._message(*self._stopped()) | {"lockstep": self._generation.figures(self._with_ids)}

    def _message(self, reason: str | None, stop: str | None) -> dict[str, Any]:
        head = {"id": self._generation.request.id, "type": "message", "role": "assistant", "model": self._model}
        return head | {"content": self.blocks[:], "stop_reason": reason, "stop_sequence": stop, "usage": self._usage()}

    def _stopped(self) -> tuple[str, str | None]:
        stop = self._generation.text.stopped
        if stop is not None:
            return "stop_sequence", stop
        return {"length": "max_tokens", "tool_calls": "tool_use"}.get(self._generation.finish_reason, "end_turn"), None

    def _usage(self) -> dict[str, int]:
        """Tokens that were read anew, those that were not, and those of the reply so far."""
        usage = usage_of([self._generation])
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        new = usage["prompt_tokens"] - cached
        return {"input_tokens": new, "cache_read_input_tokens": cached, "output_tokens": usage["completion_tokens"]}


def _block(kind: Kind, text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""} if kind == "thought" else {"type": "text", "text": text}
