"""Questions of the smoke test and what counts as an answer. Pure functions on replies; asks nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recipe.settings import EMBEDDED

Reply = dict[str, Any]
WORD = "ready"


@dataclass(frozen=True)
class Probe:
    """A chat request without its model, and a judge: what is wrong with the reply, or ""."""

    name: str
    body: dict[str, Any]
    judge: Callable[[Reply], str]


def chat(text: str, *, max_tokens: int) -> dict[str, Any]:
    """Body of a greedy request without thinking."""
    return {
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def text_of(reply: Reply) -> str:
    """The answer's text; empty where the reply has none."""
    try:
        return str(reply["choices"][0]["message"].get("content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return ""


def tokens_of(reply: Reply) -> int:
    """Tokens the server says it generated."""
    usage = reply.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0


def is_collapsed(text: str) -> bool:
    """Whether a text of some length is one character over and over, as of a model whose numbers have gone wrong."""
    seen = "".join(text.split())
    return len(seen) >= 4 and len(set(seen)) == 1


def judge_tokens(reply: Reply) -> str:
    """Something was generated and the reply is whole. All that random weights allow to ask."""
    if tokens_of(reply) < 1:
        return "no token was generated"
    try:
        reason = reply["choices"][0]["finish_reason"]
    except (KeyError, IndexError, TypeError):
        return "the reply has no choice with a finish_reason"
    return "" if reason in ("stop", "length") else f"finish_reason is {reason!r}"


def judge_word(reply: Reply) -> str:
    """The very word asked for."""
    text = text_of(reply).strip()
    if not text:
        return "the answer is blank"
    if is_collapsed(text):
        return f"the answer is {text[0]!r} over and over"
    return "" if text.strip(".!\"'`").lower() == WORD else f"the answer is {text[:60]!r}, not {WORD!r}"


OBEY = chat(f"Reply with exactly: {WORD}", max_tokens=32)


def probes(profile: str) -> tuple[Probe, ...]:
    """The embedded checkpoint has random weights, so it can only be asked for tokens."""
    if profile == EMBEDDED:
        return (Probe("tokens", OBEY, judge_tokens),)
    return (Probe("exact word", OBEY, judge_word),)
