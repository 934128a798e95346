"""Generations as the two JSON forms of OpenAI, whole or as a stream. What a choice looks like is the endpoint's matter."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from lockstep.server.body import aside
from lockstep.server.company import side_by_side
from lockstep.server.generation import Generation
from lockstep.server.logprobs import Rows
from lockstep.server.response_store import TOKEN_BYTES
from lockstep.server.schema import GenerationBody
from lockstep.server.stream import DONE, Json, sse
from lockstep.text.reply import Delta, joined

Choice = dict[str, Any]
# Some clients drop comments when they time chunks, so a call under way shows as deltas that say nothing.
IN_CALL_EVENT_S = 2.0


class Dialect(Protocol):
    """How an endpoint words one choice."""

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

    def logprobs(self, rows: Rows) -> dict[str, Any] | None:
        """What `logprobs` of a choice says of the next tokens."""
        ...


@dataclass(slots=True)
class Voice:
    """A choice under way: its generation, how it is worded, what its first chunk still owes."""

    generation: Generation
    dialect: Dialect
    opening: list[Choice]
    said_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Of prompt and reply."""
        return len(self.generation.request.prompt_ids) + len(self.generation.text.tokens)

    def prompt_rows(self) -> Rows:
        """Tokens of the prompt with their logarithms, if they were asked for; of the first there is none."""
        if self.generation.request.prompt_logprobs < 0:
            return []
        return list(zip(self.generation.request.prompt_ids, (None, *self.generation.prompt_logprobs), strict=True))

    def chunks(self, delta: Delta) -> list[Choice]:
        """What one delta adds. Logarithms of tokens that show nothing yet come with the next chunk."""
        opening, self.opening = self.opening, []
        choices = self.dialect.pieces(delta)
        if not (choices or opening) and self.generation.text.in_call and time.monotonic() - self.said_s >= IN_CALL_EVENT_S:
            return [self.dialect.idle()]
        if opening and (rows := self.prompt_rows()):
            opening[0]["logprobs"] = self.dialect.logprobs(rows)
        if choices:
            choices[0]["logprobs"] = self.dialect.logprobs(self.generation.fresh())
        return opening + choices


async def whole_reply(generations: Sequence[Generation], dialects: Sequence[Dialect], model: str, body: GenerationBody) -> Json:
    """The joined streams in one object."""
    head = _head(generations, dialects, model, dialects[0].whole_object)
    voices = _voices(generations, dialects)
    deltas: list[list[Delta]] = [[] for _ in generations]
    async with aclosing(side_by_side(generations)) as spoken:
        async for place, delta in spoken:
            if delta is not None:
                deltas[place].append(delta)

    def told() -> Json:
        choices = []
        for voice, said in zip(voices, deltas, strict=True):
            choice = voice.dialect.whole(joined(said), voice.generation.finish_reason)
            choice["logprobs"] = voice.dialect.logprobs([*voice.prompt_rows(), *voice.generation.fresh()])
            choices.append(choice | _ids(voice.generation, body))
        figures = _figures(generations, bool(body.return_token_ids))
        reply = head | {"choices": choices, "usage": usage_of(generations), "lockstep": figures}
        return Json(reply | _prompt_ids(generations[0], body))

    return await aside(sum(voice.tokens for voice in voices) * TOKEN_BYTES, told)


async def reply_events(
    generations: Sequence[Generation], dialects: Sequence[Dialect], model: str, body: GenerationBody
) -> AsyncGenerator[bytes, None]:
    """Server-sent events, one item a round of a choice. A choice's opening chunk goes out with its first token, never before."""
    head = _head(generations, dialects, model, dialects[0].chunk_object)
    voices = _voices(generations, dialects)
    async with aclosing(side_by_side(generations)) as spoken:
        async for place, delta in spoken:
            voice = voices[place]
            if delta is None:
                yield b"".join(_closing(voice, head, body))
            elif choices := await aside(voice.tokens * TOKEN_BYTES if voice.opening else 0, partial(voice.chunks, delta)):
                voice.said_s = time.monotonic()
                extra = {"usage": usage_of(generations)} if body.continuous_usage else {}
                yield b"".join(sse(head | {"choices": [choice]} | extra) for choice in choices)
    yield (sse(head | {"choices": [], "usage": usage_of(generations)}) if body.include_usage else b"") + DONE


def _closing(voice: Voice, head: dict[str, Any], body: GenerationBody) -> list[bytes]:
    """Events of the end of one choice."""
    generation, dialect = voice.generation, voice.dialect
    opening = voice.chunks(Delta())
    closing = dialect.closing(generation.finish_reason)
    closing["logprobs"] = dialect.logprobs(generation.fresh())
    told = {"choices": [closing | _ids(generation, body)], "lockstep": generation.figures(bool(body.return_token_ids))}
    return [sse(head | {"choices": [choice]}) for choice in opening] + [sse(head | told | _prompt_ids(generation, body))]


def _prompt_ids(generation: Generation, body: GenerationBody) -> dict[str, Any]:
    """Where vLLM has them, if they were asked for."""
    return {"prompt_token_ids": list(generation.request.prompt_ids)} if body.return_token_ids else {}


def _ids(generation: Generation, body: GenerationBody) -> dict[str, Any]:
    """Those of a choice."""
    return _prompt_ids(generation, body) | {"token_ids": list(generation.text.tokens)} if body.return_token_ids else {}


def _voices(generations: Sequence[Generation], dialects: Sequence[Dialect]) -> list[Voice]:
    now_s = time.monotonic()
    return [Voice(generation, dialect, dialect.opening(), now_s) for generation, dialect in zip(generations, dialects, strict=True)]


def usage_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """OpenAI's usage object, of the replies so far. A prompt counts once, whatever the number of its choices."""
    prompts = [(len(one.request.prompt_ids), one.cached_tokens) for one in generations if one.choice == 0]
    prompt, cached = sum(tokens for tokens, _ in prompts), sum(map(min, prompts))
    texts = [one.text for one in generations]
    reply, thought = sum(len(text.tokens) for text in texts), sum(text.reasoning_tokens for text in texts)
    details = {"prompt_tokens_details": {"cached_tokens": cached}, "completion_tokens_details": {"reasoning_tokens": thought}}
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply} | details


def _figures(generations: Sequence[Generation], with_ids: bool) -> dict[str, Any]:
    """Those of the first choice; of several, of each in `choices` too."""
    every = [generation.figures(with_ids) for generation in generations]
    return every[0] if len(every) == 1 else every[0] | {"choices": every}


def _head(generations: Sequence[Generation], dialects: Sequence[Dialect], model: str, kind: str) -> dict[str, Any]:
    return {"id": generations[0].request.id.partition("/")[0], "object": kind, "created": int(time.time()), "model": model}
