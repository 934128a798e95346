"""A generation as blocks, whole or as named events: a thought, a text, a call, one after the other. How they are worded is the
dialect's matter.

The whole form is what the events add up to."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

from lockstep.server.generation import Generation
from lockstep.server.stream import Json, named_event
from lockstep.text.reply import Delta
from lockstep.text.tools import ToolCall

Kind = Literal["thought", "text"]
Event = dict[str, Any]


class BlockWriter:
    """Turns deltas into events and keeps the finished blocks. At most one block is open."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._kind: Kind | None = None
        self._text = ""

    def feed(self, delta: Delta) -> list[Event]:
        """Events of one delta."""
        return [event for piece in delta.in_order for event in self._feed(piece)]

    def _feed(self, delta: Delta) -> list[Event]:
        events: list[Event] = []
        pieces: tuple[tuple[Kind, str], ...] = (("thought", delta.reasoning), ("text", delta.content))
        for kind, text in pieces:
            if text:
                events += self.close() if self._kind not in (None, kind) else []
                events += self._grow(kind, text)
        for call in delta.calls:
            events += [*self.close(), *self.called(call)]
        return events

    def close(self, is_last: bool = False) -> list[Event]:
        """End the open block, if there is one; `is_last` if the reply has ended."""
        if self._kind is None:
            return []
        kind, text, self._kind, self._text = self._kind, self._text, None, ""
        return self.closed(kind, text, is_last)

    def _grow(self, kind: Kind, text: str) -> list[Event]:
        events = [] if self._kind else self.opened(kind)
        self._kind, self._text = kind, self._text + text
        return [*events, self.grew(kind, text)]

    def begin(self) -> list[Event]:
        """Events before the first block."""
        raise NotImplementedError

    def opened(self, kind: Kind) -> list[Event]:
        """Events of a new block."""
        raise NotImplementedError

    def grew(self, kind: Kind, text: str) -> Event:
        """Event of more text."""
        raise NotImplementedError

    def closed(self, kind: Kind, text: str, is_last: bool) -> list[Event]:
        """Events of the end of a block, which goes to `blocks`."""
        raise NotImplementedError

    def called(self, call: ToolCall) -> list[Event]:
        """Events of a whole call, a block of its own."""
        raise NotImplementedError

    def end(self) -> list[Event]:
        """Events behind the last block; the generation has ended."""
        raise NotImplementedError

    def whole(self) -> dict[str, Any]:
        """The reply in one object."""
        raise NotImplementedError


async def whole_blocks(generation: Generation, writer: BlockWriter) -> Json:
    """The reply in one object."""
    writer.begin()
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            writer.feed(delta)
    writer.close(is_last=True)
    writer.end()
    return Json(writer.whole())


async def block_events(generation: Generation, writer: BlockWriter) -> AsyncGenerator[bytes, None]:
    """Named events, one item a round. The first go out with the first token, never before."""
    opening = True
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            events = [*(writer.begin() if opening else ()), *writer.feed(delta)]
            opening = False
            if events:
                yield b"".join(map(named_event, events))
    closing = [*(writer.begin() if opening else ()), *writer.close(is_last=True), *writer.end()]
    yield b"".join(map(named_event, closing))
