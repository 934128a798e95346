"""A reply's token ids, as they come, into visible text, reasoning and tool calls. Knows no HTTP and no engine.

The result does not depend on how the ids were cut into rounds. Reasoning ends at the close token's id, never at its spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from lockstep.text.loops import cycle
from lockstep.text.stops import StopScanner
from lockstep.text.tokenizer import ByteText, Tokenizer
from lockstep.text.tools import CallReader, ParsedCall, Step, Tag, ToolCall, Tools


@dataclass(frozen=True, slots=True)
class Delta:
    """What became complete. Reasoning always precedes content; calls come whole. `pieces` has the order of calls among others."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    pieces: tuple[Delta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)

    @property
    def in_order(self) -> tuple[Delta, ...]:
        """Itself in pieces of one kind each, or as it is if the order of its fields is that of the reply."""
        return self.pieces or (self,)


def joined(deltas: Iterable[Delta]) -> Delta:
    """Several deltas as one."""
    held = list(deltas)
    calls = tuple(call for delta in held for call in delta.calls)
    return Delta("".join(delta.reasoning for delta in held), "".join(delta.content for delta in held), calls)


@dataclass(slots=True)
class _Rehearsal:
    """Calls written before the reasoning was closed, and all bytes since the first. They count only if nothing follows them."""

    calls: list[ParsedCall] = field(default_factory=list)
    data: bytes = b""


class ReplyText:
    """Feed ids, read text. Stop strings match in visible content only; `stopped` names the one that ended the reply.

    `split_reasoning` off (raw completions) shows think tags as text. Without `tools` the tags of calls are text. `tokens` holds the
    ids that are part of the reply: those up to and including the one that completed a stop, or the one call of a reply that may
    hold only one, or a `cycle` of so many ids, over and over for `loop_limit` of them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        in_reasoning: bool = False,
        split_reasoning: bool = True,
        tools: Tools | None = None,
        loop_limit: int = 0,
    ) -> None:
        self._tokenizer, self._loop_limit, self.cycle = tokenizer, loop_limit, 0
        self._stops = StopScanner(stops)
        self._split = split_reasoning
        self._thinking = in_reasoning
        self._spoken = False
        self._reasoning_text, self._content_text = ByteText(), ByteText()
        self._tools = tools
        self._reader = CallReader(tools) if tools else None
        self._rehearsal = _Rehearsal()
        # Blanks before, between and behind calls are not content.
        self._blank, self._holds_blank = b"", tools is not None
        self._out: list[Delta] = []
        self.calls: list[ToolCall] = []
        self.thought = ""
        self.tokens: list[int] = []
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._stops.matched

    @property
    def has_ended(self) -> bool:
        """True once no further id can be part of the reply."""
        return self.stopped is not None or self.cycle > 0 or bool(self.calls and self._tools and not self._tools.parallel)

    @property
    def in_call(self) -> bool:
        """True while a call is being written."""
        return bool((self._reader and self._reader.is_open) or self._rehearsal.calls)

    def feed(self, tokens: Iterable[int]) -> Delta:
        """What these ids complete. Ids behind the end are left out."""
        for token in tokens:
            if self.has_ended:
                break
            self.tokens.append(token)
            self.reasoning_tokens += self._thinking
            self._token(token)
            self.cycle = cycle(self.tokens, self._loop_limit) if self._loop_limit else 0
        return self._drain()

    def finish(self, is_cut: bool = False) -> Delta:
        """What was held back, as a possible stop or call. Bytes of an incomplete character are dropped.

        `is_cut`: the reply was ended from outside (max_tokens). A call that is open then is dropped; otherwise it is closed if it
        is whole without its end tag, else it is text.
        """
        if self._reader and self._reader.is_open and not self.has_ended:
            if is_cut:
                self._reader.abandon()
            else:
                self._settle(self._reader, self._reader.finish())
        if self._rehearsal.calls and not is_cut:
            self._deliver(self._rehearsal.calls)
        else:
            self._forget_rehearsal()
        if not self.calls:
            self._show(self._blank)
        self._out.append(Delta("", self._stops.flush()))
        return self._drain()

    def _drain(self) -> Delta:
        delta, pieces = joined(self._out), tuple(piece for piece in self._out if piece)
        self._out.clear()
        self.thought += delta.reasoning
        return replace(delta, pieces=pieces) if delta.calls and len(pieces) > len(delta.calls) else delta

    def _token(self, token: int) -> None:
        if self._reader and self._reader.is_open and self._is_read(self._reader, token):
            return
        if self._split and self._is_think_tag(token):
            return
        if self._tokenizer.is_hidden(token):
            return
        self._spoken = self._spoken or not self._thinking
        if self._reader and self._tools and self._tools.tags.get(token) is Tag.CALL:
            self._reader.begin()
            return
        self._say(self._tokenizer.token_bytes(token))

    def _is_read(self, reader: CallReader, token: int) -> bool:
        """Give an id to the open call; False if it has to be looked at again, behind the call."""
        if self._thinking and token == self._tokenizer.think_close:
            reader.abandon()
            self._settle(reader, Step.TEXT)
            return False
        if self._tokenizer.is_hidden(token):
            return True
        step = reader.feed(token, self._tokenizer.token_bytes(token))
        self._settle(reader, step)
        return step in (Step.HELD, Step.CALL, Step.TEXT) or self.has_ended

    def _settle(self, reader: CallReader, step: Step) -> None:
        if step in (Step.CALL, Step.CALL_BEFORE) and reader.call:
            if self._thinking:
                self._rehearsal.calls.append(reader.call)
                self._rehearsal.data += reader.held
            else:
                self._forget_rehearsal()
                self._deliver([reader.call])
        elif step is not Step.HELD:
            self._say(reader.held)

    def _deliver(self, calls: Sequence[ParsedCall]) -> None:
        """The next calls of the reply; of a reply that may hold one call, the first."""
        assert self._tools is not None
        for call in calls[: None if self._tools.parallel else 1 - len(self.calls)]:
            self.calls.append(call.numbered(len(self.calls), self._tools.key))
            self._out.append(Delta(calls=(self.calls[-1],)))
        self._rehearsal = _Rehearsal()
        self._blank, self._holds_blank = b"", True

    def _say(self, data: bytes) -> None:
        if self._thinking:
            self._thought(data)
        else:
            self._content(data)

    def _thought(self, data: bytes) -> None:
        if self._rehearsal.calls and not data.strip():
            self._rehearsal.data += data
            return
        self._forget_rehearsal()
        self._out.append(Delta(self._reasoning_text.feed(data)))

    def _content(self, data: bytes) -> None:
        if self._holds_blank and not data.strip():
            self._blank += data
            return
        self._forget_rehearsal()
        self._show(self._blank + data)
        self._blank, self._holds_blank = b"", False

    def _show(self, data: bytes) -> None:
        self._out.append(Delta("", self._stops.feed(self._content_text.feed(data))))

    def _forget_rehearsal(self) -> None:
        """Calls that something followed were part of the thought."""
        if data := self._rehearsal.data:
            self._rehearsal = _Rehearsal()
            self._out.append(Delta(self._reasoning_text.feed(data)))

    def _is_think_tag(self, token: int) -> bool:
        """Think tags are never text. Opening one counts only before the answer began, so an answer cannot turn into thought."""
        if token == self._tokenizer.think_close:
            self._thinking = False
            return True
        if token == self._tokenizer.think_open:
            self._thinking = self._thinking or not self._spoken
            return True
        return False
