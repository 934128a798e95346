"""One client's connection: uvicorn's protocol with an end to patience, bounds on heads, and refusals in JSON. Knows no endpoint."""

import asyncio
import json
from types import SimpleNamespace
from typing import cast

from starlette.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lockstep.server.errors import RETRY_AFTER_S, ApiError

MAX_CONNECTIONS = 4096
MAX_HEAD_BYTES, MAX_HEADERS = 1 << 16, 128
# From connecting, or from a request's first byte, to the end of its head; and without another byte of its body.
HEAD_S, BODY_SILENCE_S = 60.0, 60.0
# Clients keep idle connections up to 90 s; a server that closes first makes them fail in between.
KEEP_ALIVE_S = 180
# From a reply that no buffer takes any more of to one that three quarters of were taken: who reads as slowly as that is cut.
READ_S = 60.0
# How long, and how much, is read and dropped of a body that was refused: closed over unread bytes, a socket takes its answer back.
LINGER_S, LINGER_BYTES = 30.0, 384 << 20


class Connection(HttpToolsProtocol):
    """Refuses with 408 who is silent in the middle of a request, with 431 a head that is too large, with 503 one connection too many.

    Who does not read its reply is cut."""

    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _head_bytes, _in_body = 0, False
    _left_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it or refuse it."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            message = f"{MAX_CONNECTIONS} connections are open, as many as this server holds; close some or try again later."
            self._refuse(ApiError(503, message, code="too_many_connections", headers={"Retry-After": str(RETRY_AFTER_S)}))
        self._wait(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._wait(None)
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes no more for now."""
        super().pause_writing()
        self._unread = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It took most of what there was."""
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless a head has no end. Drop it, once the last answer is given."""
        if self._left_bytes:
            self._left_bytes -= len(data)
            if self._left_bytes <= 0:
                self.transport.abort()
            return
        if self._is_between or self._head_bytes:
            self._head_bytes += len(data)
            if self._late is None:
                self._wait(HEAD_S)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self._left_bytes:
            self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head_bytes = max(self._head_bytes, 1)

    def on_headers_complete(self) -> None:
        """A head is whole: its body may take longer."""
        self._head_bytes, self._in_body = 0, True
        self._wait(BODY_SILENCE_S)
        serving = self.app
        assert self.parser is not None
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self.app = _refusal(ApiError(505, "The request is of another version; needed: HTTP/1.1.", code="invalid_http"))  # type: ignore[assignment]
        elif len(self.headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self.app = _refusal(_head_too_large())  # type: ignore[assignment]
        super().on_headers_complete()
        self.app = serving
        write, is_closing = self.transport.write, self.transport.is_closing  # uvicorn closes what its cycle writes to: that lingers
        lingering = SimpleNamespace(write=lambda data: self._left_bytes or write(data), is_closing=is_closing, close=self._leave)
        self.cycle.transport = cast("asyncio.Transport", lingering)

    def on_body(self, body: bytes) -> None:
        """Another part came, so there is patience for the next, unless it was answered already."""
        if not self.cycle.response_complete:
            self._wait(BODY_SILENCE_S)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All is there."""
        self._in_body = False
        self._wait(None)
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP, told in JSON."""
        self._refuse(ApiError(400, "The connection brought bytes that are no HTTP request; needed: HTTP/1.1.", code="invalid_http"))

    @property
    def _is_between(self) -> bool:
        # A request may be answered before all of it is there.
        return self.cycle is None or (self.cycle.response_complete and not self._in_body)

    def _wait(self, seconds: float | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None if seconds is None else self.loop.call_later(seconds, self._give_up, seconds)

    def _give_up(self, seconds: float) -> None:
        # While a reply runs nothing is read, so what is behind it cannot be late.
        if self.pipeline or (self._head_bytes and not self._is_between):
            self._wait(seconds)
            return
        message = f"The request was not complete and nothing came for {seconds:g} s; send it in one go."
        self._refuse(ApiError(408, message, code="request_timeout", kind="timeout_error"))

    def _refuse(self, error: ApiError) -> None:
        """Answer outside of any request and close. Nothing is put into a reply that has begun."""
        self._wait(None)
        if self._is_between or not self.cycle.response_started:
            body = json.dumps(error.body()).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"} | error.headers
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body)
        self._leave()

    def _leave(self) -> None:
        """Close; where a request is not all there, only once the client has, or too much or too late has come."""
        if not (self._in_body or self._head_bytes):
            self.transport.close()
        elif not self._left_bytes:
            self._left_bytes = LINGER_BYTES
            self.pipeline.clear()
            self.transport.write_eof()
            self._wait(None)
            self._late = self.loop.call_later(LINGER_S, self.transport.abort)


def _head_too_large() -> ApiError:
    return ApiError(431, f"The head of the request has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers.", code="head_too_large")


def _refusal(error: ApiError) -> JSONResponse:
    """The application of a request that gets as far as its head."""
    return JSONResponse(error.body(), error.status, {"connection": "close"})
