"""Questions of the smoke test and what counts as an answer. Pure functions on replies; asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verify.judge import Reply, judge, short

WORD = "ready"
JSON = f'Reply with a JSON object with the key "status" and the value "{WORD}". Answer with JSON only.'
STATUS = {
    "type": "json_schema",
    "json_schema": {
        "name": "status",
        "strict": True,
        "schema": {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"], "additionalProperties": False},
    },
}
CITY = {"type": "string", "description": "Name of the city"}
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
}
# A red circle on white, 112 x 112, drawn by embedded/make/data/drawing.py.
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAHAAAABwBAMAAAA0zul4AAAAG1BMVEX///8AAADIyMjcHh4eoDwoRtz11yiMMqr1jB5ND1DoAAAAxUlEQVR42u2W"
    "3QnDMAyEr/YQ7RiG7j+CccYo3UHQh8Q0qRUquTUkcN9LrINDPxbEACGEEEJ+Ia6Di9mVAADZa7zXg0xKeoMP4fqYv+7ulrPNmNog+gp9Fxu811Dj0HupwdthFYK/0lkJHQmBNLTH"
    "qGtDp9ppTLp4xFLPY4w76lej7Kicqnvaa543RSyH7FF0beBwtOkUU0ZRFcvfqklZRm+OaLEpY976JvvjYdNlcWyOtGfjcDI+3zndL6s/bxkhhBBCTsILSZsewIZm25EAAAAASUVO"
    "RK5CYII="
)
COLOUR = {"kind": "word", "words": ["red"], "wrong": ["green", "blue", "yellow", "purple", "orange"]}
TAIL, AGAIN = 48, 4


@dataclass(frozen=True)
class Probe:
    """A chat request without its model, and a judge: what is wrong with the reply, or ""."""

    name: str
    body: dict[str, Any]
    judge: Callable[[Reply], str]


def chat(content: Any, *, max_tokens: int, **more: Any) -> dict[str, Any]:
    """Body of a greedy request without thinking."""
    return {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "chat_template_kwargs": {"enable_thinking": False},
        **more,
    }


def collapse(reply: Reply) -> str:
    """The characters that a part of a reply, or its end, says over and over, as of a model whose numbers have gone wrong; or ""."""
    given = [value for _, told in reply.calls for value in (told.values() if isinstance(told, dict) else [told])]
    for part in (reply.reasoning, reply.content, *given):
        said = "".join(str(part).split())[-TAIL:]
        for length in range(1, len(said) // AGAIN + 1):
            if said[length:] == said[:-length]:
                return said[:length]
    return ""


def judge_word(reply: Reply) -> str:
    """The very word asked for; a full stop, quotes or a capital are let pass."""
    if reply.content.strip().strip(".!\"'`").lower() == WORD:
        return ""
    return f"the answer is {short(reply.content)}, not {WORD!r}" if reply.content.strip() else "the answer is blank"


def expecting(expect: Mapping[str, Any]) -> Callable[[Reply], str]:
    """A judge by the rules of the quality suite."""
    return lambda reply: judge(expect, reply)


def _pictured() -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "text", "text": "What color is the circle? Answer with one word."},
    ]


PROBES = (
    Probe("exact word", chat(f"Reply with exactly: {WORD}", max_tokens=32), judge_word),
    Probe("JSON object", chat(JSON, max_tokens=64), expecting({"kind": "json", "value": {"status": WORD}})),
    Probe("JSON by schema", chat(JSON, max_tokens=64, response_format=STATUS), expecting({"kind": "json", "value": {"status": WORD}})),
    Probe(
        "tool call",
        chat("What is the weather in Paris?", max_tokens=128, tools=[{"type": "function", "function": WEATHER}]),
        expecting({"kind": "calls", "calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}),
    ),
)
PICTURE_PROBE = Probe("picture", chat(_pictured(), max_tokens=32), expecting(COLOUR))
