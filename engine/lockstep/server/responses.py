"""`/v1/responses`: a conversation as items, its reply as items and typed events; `/v1/responses/input_tokens` counts."""

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lockstep.server.blocks import BlockWriter, Event, Kind, block_events, whole_blocks
from lockstep.server.body import aside, read_model
from lockstep.server.chat import Ask, chat_generations
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.documents import Deleted, InputTokens, ResponseReply, errors, inference_route
from lockstep.server.errors import ApiError
from lockstep.server.generation import Generation, reply_id
from lockstep.server.replies import usage_of
from lockstep.server.response_store import TOKEN_BYTES, Stored
from lockstep.server.responses_form import Item, ResponsesBody, chat_form
from lockstep.server.schema import ChatBody
from lockstep.server.stream import EventStream, Json, named_event, unless_client_leaves
from lockstep.server.tokenize import conversation_tokens
from lockstep.text.tools import ToolCall

router = APIRouter(tags=["responses"])


@router.post("/v1/responses", **inference_route(ResponsesBody, ResponseReply))
async def responses(request: Request) -> Response:
    """Continue a conversation. With `stream` the reply comes as typed server-sent events."""
    site = deployment(request)
    site.require_ready()
    body = await read_model(request, ResponsesBody, site.body_bytes)
    site.require_model(body.model)
    return await unless_client_leaves(request, _reply(request, site, body))


@router.post("/v1/responses/input_tokens", **inference_route(ResponsesBody, InputTokens))
async def input_tokens(request: Request) -> Response:
    """Tokens of a conversation as a generation would render it."""
    site = deployment(request)
    body = await read_model(request, ResponsesBody, site.body_bytes)
    site.require_model(body.model)
    return await unless_client_leaves(request, _count(request, site, body))


@router.get("/v1/responses/{name}", response_model=ResponseReply, responses=errors(401, 404))
async def stored_response(request: Request, name: str) -> Json:
    """A reply that was stored."""
    return Json(_stored(request, name, "id").reply)


@router.delete("/v1/responses/{name}", response_model=Deleted, responses=errors(401, 404))
async def delete_response(request: Request, name: str) -> Json:
    """Forget a reply."""
    _stored(request, name, "id")
    deployment(request).replies.drop(name, deployment(request).owner(request))
    return Json({"id": name, "object": "response.deleted", "deleted": True})


def _stored(request: Request, name: str, param: str) -> Stored:
    site = deployment(request)
    found = site.replies.get(name, site.owner(request))
    if found is None:
        message = f"No reply `{name[:80]}` is stored; needed: the id of one of the newest that were sent with `store`."
        raise ApiError(404, message, param=param, code="response_not_found", kind="not_found_error")
    return found


async def _chat(request: Request, body: ResponsesBody) -> tuple[ChatBody, tuple[Item, ...]]:
    """The conversation as chat, and those of its items that were stored."""
    stored = _stored(request, body.previous_response_id, "previous_response_id") if body.previous_response_id else None
    earlier = stored.items if stored else ()
    request.state.sent_bytes += stored.size if stored else 0
    return await aside(request, lambda: chat_form(body, earlier)), earlier


async def _count(request: Request, site: Deployment, body: ResponsesBody) -> Response:
    chat, _ = await _chat(request, body)
    return Json({"object": "response.input_tokens", "input_tokens": await conversation_tokens(request, site, chat)})


async def _reply(request: Request, site: Deployment, body: ResponsesBody) -> Response:
    chat, earlier = await _chat(request, body)
    [generation] = await chat_generations(
        request, site, chat, Ask(reply_id("resp_"), "responses", "input", body.max_output_tokens or chat.reply_tokens)
    )

    def keep(reply: Item) -> None:
        if body.store is not False:
            size = request.state.sent_bytes + TOKEN_BYTES * len(generation.text.tokens)
            site.replies.put(Stored(reply, (*earlier, *body.items, *reply["output"]), site.owner(request), size))

    writer = ResponseWriter(generation, body, site.options.name, keep)
    if body.stream:
        return EventStream(block_events(generation, writer), failure=writer.failed)
    return await whole_blocks(generation, writer)


class ResponseWriter(BlockWriter):
    """Output items and their events. `keep` gets the finished reply."""

    def __init__(self, generation: Generation, body: ResponsesBody, model: str, keep: Any = lambda reply: None) -> None:
        super().__init__()
        self._generation, self._body, self._model, self._keep = generation, body, model, keep
        self._number, self._created = 0, int(time.time())
        self._reply: dict[str, Any] = {}

    def begin(self) -> list[Event]:
        return [self._event(f"response.{kind}", response=self._whole("in_progress")) for kind in ("created", "in_progress")]

    def opened(self, kind: Kind) -> list[Event]:
        item = self._item(kind, None, "in_progress")
        return [
            self._event("response.output_item.added", output_index=len(self.blocks), item=item),
            self._event("response.content_part.added", **self._at(kind), part=_part(kind, "")),
        ]

    def grew(self, kind: Kind, text: str) -> Event:
        return self._event(f"response.{_WORDS[kind]}.delta", **self._at(kind), delta=text, **_logprobs(kind))

    def closed(self, kind: Kind, text: str, is_last: bool) -> list[Event]:
        item = self._item(kind, text, "incomplete" if is_last and self._generation.finish_reason == "length" else "completed")
        events = [
            self._event(f"response.{_WORDS[kind]}.done", **self._at(kind), text=text, **_logprobs(kind)),
            self._event("response.content_part.done", **self._at(kind), part=_part(kind, text)),
            self._event("response.output_item.done", output_index=len(self.blocks), item=item),
        ]
        self.blocks.append(item)
        return events

    def called(self, call: ToolCall) -> list[Event]:
        item = {"id": self._name("fc"), "type": "function_call", "call_id": call.id, "name": call.name, "status": "completed"}
        place = {"item_id": item["id"], "output_index": len(self.blocks)}
        begun = item | {"arguments": "", "status": "in_progress"}
        done = item | {"arguments": call.arguments}
        self.blocks.append(done)
        return [
            self._event("response.output_item.added", output_index=place["output_index"], item=begun),
            self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
            self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", output_index=place["output_index"], item=done),
        ]

    def end(self) -> list[Event]:
        events = [] if self.blocks else [*self.opened("text"), *self.closed("text", "", True)]
        status = "incomplete" if self._generation.finish_reason == "length" else "completed"
        self._reply = self._whole(status)
        self._keep(self._reply)
        return [*events, self._event(f"response.{status}", response=self._reply)]

    def whole(self) -> dict[str, Any]:
        return self._reply

    def failed(self, error: ApiError) -> bytes:
        """The last event of a stream that failed."""
        told = {"code": error.code or "server_error", "message": error.message}
        return named_event(self._event("response.failed", response=self._whole("failed") | {"error": told}))

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1} | fields

    def _name(self, prefix: str) -> str:
        """Id of the item that is next: that of the reply and its place."""
        return f"{prefix}_{self._generation.request.id.removeprefix('resp_')}{len(self.blocks)}"

    def _at(self, kind: Kind) -> dict[str, Any]:
        return {"item_id": self._name(_PREFIXES[kind]), "output_index": len(self.blocks), "content_index": 0}

    def _item(self, kind: Kind, text: str | None, status: str) -> Item:
        content = [] if text is None else [_part(kind, text)]
        head = {"id": self._name(_PREFIXES[kind]), "status": status, "content": content}
        return head | ({"type": "reasoning", "summary": []} if kind == "thought" else {"type": "message", "role": "assistant"})

    def _whole(self, status: str) -> dict[str, Any]:
        body, sampling, has_ended = self._body, self._generation.request.sampling, status in ("completed", "incomplete")
        extra = body.model_extra or {}
        told = {
            "id": self._generation.request.id, "object": "response", "created_at": self._created, "status": status, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None, "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens, "metadata": body.metadata or {}, "model": self._model, "output": self.blocks[:],
            "parallel_tool_calls": extra.get("parallel_tool_calls") is not False, "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None}, "store": body.store is not False,
            "temperature": sampling.temperature, "text": {"format": (body.text or {}).get("format") or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto", "tools": [tool for tool in body.tools or () if tool.get("type") == "function"],
            "top_p": sampling.top_p, "truncation": "disabled", "usage": self._usage() if has_ended else None,
        }  # fmt: skip
        return told | ({"lockstep": self._generation.figures(extra.get("return_token_ids") is True)} if has_ended else {})

    def _usage(self) -> dict[str, Any]:
        usage = usage_of([self._generation])
        return {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"], "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }  # fmt: skip


_WORDS: dict[Kind, str] = {"thought": "reasoning_text", "text": "output_text"}
_PREFIXES: dict[Kind, str] = {"thought": "rs", "text": "msg"}


def _part(kind: Kind, text: str) -> dict[str, Any]:
    return {"type": _WORDS[kind], "text": text} | ({"annotations": [], "logprobs": []} if kind == "text" else {})


def _logprobs(kind: Kind) -> dict[str, Any]:
    return {"logprobs": []} if kind == "text" else {}
