"""Replies over a connection that can break: server-sent events, keep-alives, and the end of work nobody waits for.

Knows bytes and errors; what an event says is the endpoint's matter."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from lockstep.server.errors import ApiError, failed, in_words_of

KEEPALIVE_S = 15.0
CLIENT_LEFT = 499
DONE, COMMENT = b"data: [DONE]\n\n", b": keepalive\n\n"
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

log = logging.getLogger("lockstep.server")


class Json(JSONResponse):
    """A value as JSON, some ten times as fast as the standard library writes it."""

    def render(self, content: Any) -> bytes:
        """Its bytes."""
        return msgspec.json.encode(content)


def sse(value: Any) -> bytes:
    """One event. Everything outside ASCII is escaped: some clients cut lines at U+2028 and U+0085 too."""
    data = msgspec.json.encode(value)
    return b"data: " + (data if data.isascii() else json.dumps(value, separators=(",", ":")).encode("ascii")) + b"\n\n"


def named_event(value: dict[str, Any]) -> bytes:
    """One event that carries its `type` as its name too."""
    return f"event: {value['type']}\n".encode() + sse(value)


def told_and_done(error: ApiError) -> bytes:
    """How a stream of OpenAI's chunks ends that failed."""
    return sse(error.body()) + DONE


class EventStream(Response):
    """Sends what `source` yields. Nothing is sent before the first event or the first silent spell, so a refusal still has its status.

    Once headers are out, an ApiError becomes the event that `failure` makes of it. A client that leaves closes `source`. Silence is filled
    with comments, behind the first event with `alive`."""

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        keepalive_s: float = KEEPALIVE_S,
        failure: Callable[[ApiError], bytes] = told_and_done,
        alive: bytes = COMMENT,
    ) -> None:
        super().__init__()
        self._failure, self._alive, self._said = failure, alive, False
        self._source = source
        self._keepalive_s = keepalive_s
        self._open = False
        self._sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the source ends or the client leaves."""
        pump = asyncio.create_task(self._pump(scope, receive, send))
        gone = asyncio.create_task(_disconnected(receive))
        self._sent_s = time.monotonic()
        try:
            while not pump.done() and not gone.done():
                silence_left = self._keepalive_s - (time.monotonic() - self._sent_s)
                if silence_left <= 0:
                    await self._send(send, self._alive if self._said else COMMENT)
                    continue
                await asyncio.wait({pump, gone}, timeout=silence_left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            pump.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)
            await self._source.aclose()

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for event in self._source:
                self._said = True
                await self._send(send, event)
        except Exception as error:
            await self._fail(_as_api_error(error), scope, receive, send)
            return
        await self._send(send, b"", last=True)

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"].state.deployment.note(scope["path"], error)
        if not self._open:
            await JSONResponse(in_words_of(scope["path"], error), error.status, error.headers)(scope, receive, send)
            return
        await self._send(send, self._failure(error))
        await self._send(send, b"", last=True)

    async def _send(self, send: Send, data: bytes, last: bool = False) -> None:
        self._sent_s = time.monotonic()
        if not self._open:
            self._open = True
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await send({"type": "http.response.body", "body": data, "more_body": not last})


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    log.error("a stream failed", exc_info=error)
    return failed("The server failed inside; its log has the details. Send the request again.")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The response `work` makes; if the client leaves first, `work` is cancelled and nobody gets the response."""
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(work)]
    try:
        # Short work is done in one turn of the loop, and nobody need watch its client.
        await asyncio.sleep(0)
        if not tasks[0].done():
            tasks.append(asyncio.create_task(_disconnected(request.receive)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else Response(status_code=CLIENT_LEFT)
    finally:
        if left := [task for task in tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
