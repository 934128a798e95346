"""A generation as the two JSON forms of OpenAI, whole or as a stream. What a choice looks like is the endpoint's matter."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from fastapi.responses import JSONResponse

from lockstep.server.generation import Generation
from lockstep.server.schema import GenerationBody
from lockstep.server.stream import DONE, sse
from lockstep.text.reply import Delta, joined

Choice = dict[str, Any]
# Some clients drop comments when they time chunks, so a call under way shows as deltas that say nothing.
IN_CALL_EVENT_S = 2.0


class Dialect(Protocol):
    """How an endpoint words a reply."""

    whole_object: str
    chunk_object: str

    def opening(self) -> list[Choice]:
        """Choices of the chunks that come before the first text."""
        ...

    def pieces(self, delta: Delta) -> list[Choice]:
        """Choices of the chunks of one delta."""
        ...

    def idle(self) -> Choice:
        """Choice of a chunk that says nothing."""
        ...

    def closing(self, reason: str) -> Choice:
        """Choice of the finish chunk."""
        ...

    def whole(self, delta: Delta, reason: str) -> Choice:
        """Choice of a whole reply."""
        ...


async def whole_reply(generation: Generation, dialect: Dialect, model: str, body: GenerationBody) -> JSONResponse:
    """The joined stream in one object."""
    head = _head(generation, dialect.whole_object, model)
    async with aclosing(generation.deltas()) as deltas:
        reply = joined([delta async for delta in deltas])
    choice = dialect.whole(reply, generation.finish_reason)
    return JSONResponse(
        head | {"choices": [choice], "usage": generation.usage(), "lockstep": generation.figures(bool(body.return_token_ids))}
    )


async def reply_events(generation: Generation, dialect: Dialect, model: str, body: GenerationBody) -> AsyncGenerator[bytes, None]:
    """Server-sent events of one reply, one item a round. The opening chunk goes out with the first token, never before."""
    head = _head(generation, dialect.chunk_object, model)
    opening = dialect.opening()
    said_s = time.monotonic()
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            choices = [*opening, *dialect.pieces(delta)]
            opening = []
            if not choices and generation.text.in_call and time.monotonic() - said_s >= IN_CALL_EVENT_S:
                choices = [dialect.idle()]
            if choices:
                said_s = time.monotonic()
                extra = {"usage": generation.usage()} if body.continuous_usage else {}
                yield b"".join(sse(head | {"choices": [choice]} | extra) for choice in choices)
    closing = {"choices": [dialect.closing(generation.finish_reason)], "lockstep": generation.figures(bool(body.return_token_ids))}
    events = [sse(head | {"choices": [choice]}) for choice in opening] + [sse(head | closing)]
    if body.include_usage:
        events.append(sse(head | {"choices": [], "usage": generation.usage()}))
    yield b"".join([*events, DONE])


def _head(generation: Generation, kind: str, model: str) -> dict[str, Any]:
    return {"id": generation.request.id, "object": kind, "created": int(time.time()), "model": model}
