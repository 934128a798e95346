"""However the engine cuts a reply into rounds, every dialect tells the same events and the same whole form: 500 scripted replies."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncGenerator, Coroutine, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.fronts import TOKENIZER
from fixtures.tool_replies import OFFERED, ids
from lockstep.core.types import EngineRequest, FinishReason, RoundEvent, Sampling, TokenLogprob, Usage
from lockstep.server.blocks import BlockWriter
from lockstep.server.chat import ChatDialect
from lockstep.server.completions import TextDialect
from lockstep.server.generation import Generation
from lockstep.server.messages import MessageWriter
from lockstep.server.replies import Voice
from lockstep.server.responses import ResponseWriter
from lockstep.server.responses_form import ResponsesBody
from lockstep.text.reply import Delta, ReplyText, joined
from lockstep.text.tools import Tools

REPLIES, SHORT, SHORT_TOKENS, LONG_TOKENS = 500, 250, 7, 18
STOPS = ((), (), ("five",), ("fi", "ve and", "END"), ("🙂",), ("\n\n", "☃."))
THOUGHTS = ["hm", "a </think> b", " ☃", "\n", "<tool_call>now</tool_call>", "END"]
TEXTS = [
    "five", " fi", "ve", "☃", "é🙂", "\n\n", "END", " and ", ".", "<tool_call>", "`<tool_call>`", "</tool_call>",
    "<tool_call>now</tool_call>", "<tool_call>get<arg_key>b</arg_key><arg_value>1</arg_value></tool_call>",
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>R ☃</arg_value></tool_call>", '<tool_call>{"name": "now"}</tool_call>',
]  # fmt: skip
TAGS = Tools.of(TOKENIZER, OFFERED, True, "k").tags


@dataclass(frozen=True)
class Script:
    """A reply as the engine would give it, and what the request said of it."""

    tokens: tuple[int, ...]
    stops: tuple[str, ...]
    thinking: bool
    tools: Tools | None
    finish: FinishReason
    loop_limit: int


class ScriptedSite:
    """The one engine that gives these rounds, and meters nobody reads."""

    def __init__(self, rounds: list[tuple[int, ...]], finish: FinishReason) -> None:
        self.rounds, self.finish, self.in_flight = rounds, finish, 0
        self.options = SimpleNamespace(max_queued=1, parallel=1)
        self.meters = SimpleNamespace(observe=lambda *_: None, count=lambda *_: None, model="m")
        self.template = SimpleNamespace(thoughts=SimpleNamespace(put=lambda *_: None))
        self.engine = SimpleNamespace(facts=None, snapshot=None, submit=self.submit, cancel=lambda _: None)

    def require_ready(self) -> None:
        """It is."""

    async def submit(self, request: EngineRequest) -> AsyncGenerator[RoundEvent, None]:
        for tokens in self.rounds[:-1]:
            yield RoundEvent(request.id, tokens, logprobs=rows(tokens))
        yield RoundEvent(request.id, self.rounds[-1], self.finish, Usage(), logprobs=rows(self.rounds[-1]))


def rows(tokens: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(-float(token)) for token in tokens)


def scripts() -> Iterator[Script]:
    """Short ones first. Most end by themselves, some are cut."""
    chance = random.Random(21)
    for number in range(REPLIES):
        most = SHORT_TOKENS if number < SHORT else LONG_TOKENS
        thinking, parallel = chance.random() < 0.4, chance.random() < 0.7
        words = chance.choices(THOUGHTS, k=chance.randint(0, 2)) + ["</think>"] * (chance.random() < 0.9) if thinking else []
        tokens = ids("".join(words)) if thinking else []
        while len(tokens) < most and chance.random() < 0.85:
            tokens += ids(chance.choice(TEXTS)) if chance.random() < 0.9 else [chance.choice([200, 131, TOKENIZER.think_open, 2304])]
        is_cut = len(tokens) > most or chance.random() < 0.15
        tokens = tokens[:most] if is_cut else [*tokens, TOKENIZER.added["<|user|>"]]
        tools = Tools(TAGS, OFFERED, parallel, "k") if chance.random() < 0.8 else None
        finish = FinishReason.LENGTH if is_cut else FinishReason.STOP
        yield Script(tuple(tokens) or (2247,), chance.choice(STOPS), thinking, tools, finish, chance.choice((0, 0, 2, 4)))


def cuts_of(count: int) -> Iterator[tuple[int, ...]]:
    """Every way of cutting a short reply, every two places of a longer one, and each token alone."""
    inner = range(1, count)
    yield tuple(inner)
    for size in range(len(inner) + 1) if count <= SHORT_TOKENS + 1 else (1, 2):
        yield from itertools.combinations(inner, size)


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that never has to wait."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the reply machinery waits for something")


def told(script: Script, cuts: tuple[int, ...]) -> dict[str, Any]:
    """Events and whole form of every dialect."""
    edges = (0, *cuts, len(script.tokens))
    site: Any = ScriptedSite([script.tokens[start:end] for start, end in itertools.pairwise(edges)], script.finish)
    return finished(_told(script, site))


async def _told(script: Script, site: Any) -> dict[str, Any]:
    text = ReplyText(TOKENIZER, script.stops, script.thinking, tools=script.tools, loop_limit=script.loop_limit)
    request = EngineRequest("r", (1, 2), Sampling(), 64, logprobs=0)
    generation = Generation(site, request, text, "test", "prompt")
    # The logarithms of a reply are told once: completions tell them here.
    spoken = Voice(generation, TextDialect(TOKENIZER), [], said_s=float("inf"))
    silent = Voice(
        Generation(site, request, text, "test", "prompt"), ChatDialect(TOKENIZER), ChatDialect(TOKENIZER).opening(), said_s=float("inf")
    )
    writers: dict[str, BlockWriter] = {
        "messages": MessageWriter(generation, "m"),
        "responses": ResponseWriter(generation, ResponsesBody.model_validate({}), "m"),
    }
    events: dict[str, list[Any]] = {"chat": [], "completions": [], "messages": [], "responses": []}
    said = list[Delta]()
    async for delta in generation.deltas():
        for name, writer in writers.items():
            events[name] += [*(() if events[name] else writer.begin()), *writer.feed(delta)]
        events["chat"] += silent.chunks(delta)
        events["completions"] += spoken.chunks(delta)
        said.append(delta)
    for name, writer in writers.items():
        events[name] += [*writer.close(is_last=True), *writer.end()]
    for name, voice in (("chat", silent), ("completions", spoken)):
        events[name].append(voice.dialect.closing(generation.finish_reason))
    events["completions"][-1]["logprobs"] = spoken.dialect.logprobs(generation.fresh())
    found: dict[str, Any] = {name: folded(name, list_of) for name, list_of in events.items()}
    found["logprobs"] = [row for event in events["completions"] for row in (event["logprobs"] or {}).get("token_logprobs", ())]
    found["whole"] = [voice.dialect.whole(joined(said), generation.finish_reason) for voice in (silent, spoken)]
    found["blocks"] = [without_times(writer.whole()) for writer in writers.values()]
    return found | {"tokens": text.tokens, "reason": generation.finish_reason}


def folded(name: str, events: list[Any]) -> list[Any]:
    """Events with neighbours that only go on with the same text as one, and without what counts or times them."""
    if name == "responses":
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
    folds = list[Any]()
    for event in events:
        head, text = parted(name, event)
        assert text != ""
        if text is not None and folds and folds[-1][0] == head and folds[-1][1] is not None:
            folds[-1][1] += text
        else:
            folds.append([head, text])
    return folds


def parted(name: str, event: Any) -> tuple[Any, str | None]:
    """What an event is, and its text if it may go on with the one before."""
    event = without_times({key: value for key, value in event.items() if key not in ("sequence_number", "logprobs", "lockstep")})
    if name == "completions":
        return (event | {"text": ""}, event["text"]) if event["finish_reason"] is None else (event, None)
    delta = event.get("delta")
    if isinstance(delta, str) and "arguments" not in event["type"]:
        return event | {"delta": ""}, delta
    if isinstance(delta, dict):
        for key in ("content", "reasoning_content", "text", "thinking"):
            if delta.get(key) and "role" not in delta:
                return event | {"delta": key}, delta[key]
    return event, None


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in ("lockstep", "created_at")}
    return [without_times(item) for item in value] if isinstance(value, list) else value


SCRIPTS = list(scripts())


@pytest.mark.parametrize("first", range(0, REPLIES, 50))
def test_every_way_of_cutting_a_reply_tells_the_same_in_every_dialect(first: int) -> None:
    for script in SCRIPTS[first : first + 50]:
        whole = told(script, ())
        assert whole["logprobs"] == [-float(token) for token in whole["tokens"]]
        for cuts in cuts_of(len(script.tokens)):
            assert told(script, cuts) == whole, (script, cuts)


def test_the_replies_hold_all_that_can_be_cut() -> None:
    endings = [told(script, ()) for script in SCRIPTS]
    reasons = [ending["reason"] for ending in endings]
    assert len(SCRIPTS) == REPLIES
    assert min(map(reasons.count, ("stop", "length", "tool_calls"))) > 40
    kinds = [block["type"] for ending in endings for block in ending["blocks"][0]["content"]]
    assert min(map(kinds.count, ("text", "thinking", "tool_use"))) > 60
    assert sum(ending["blocks"][0]["stop_reason"] == "stop_sequence" for ending in endings) > 30
    assert sum(ending["blocks"][0]["stop_reason"] == "tool_use" and len(ending["blocks"][0]["content"]) > 2 for ending in endings) > 10
