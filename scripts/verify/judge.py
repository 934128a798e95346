"""Judges one reply against what a case expects. Pure functions on values: knows neither HTTP nor any server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class Reply:
    """What a server said. `calls` holds (name, arguments); arguments that were no JSON object stand as they came, as text.

    `token_sha` is the hash of the reply's token ids, empty from servers without that extension.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    finish: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    drafted_tokens: int = 0
    token_sha: str = ""
    error: str = field(default="")


Rule = Callable[[Mapping[str, Any], Reply], str]


def judge(expect: Mapping[str, Any], reply: Reply) -> str:
    """Empty if the reply is right, else what was found and what was needed. Raises KeyError for an unknown kind of expectation."""
    rule = RULES[expect["kind"]]
    if reply.error:
        return reply.error
    return rule(expect, reply)


def short(text: str) -> str:
    """One quoted line of at most SHOWN_CHARACTERS."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= SHOWN_CHARACTERS else flat[:SHOWN_CHARACTERS] + "...")


def _exact(expect: Mapping[str, Any], reply: Reply) -> str:
    return "" if reply.content.strip() == expect["value"] else f"found {short(reply.content)}, needed exactly {short(expect['value'])}"


def _integers(expect: Mapping[str, Any], reply: Reply) -> str:
    found = [int(number) for number in re.findall(r"\d+", reply.content)]
    wanted = list(range(expect["first"], expect["last"] + 1))
    if found == wanted:
        return ""
    place = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    said = str(found[place]) if place < len(found) else "nothing more"
    needed = str(wanted[place]) if place < len(wanted) else f"the end after {wanted[-1]}"
    return f"number {place + 1}: found {said}, needed {needed}"


def _equal(one: Any, other: Any) -> bool:
    """Equal JSON values of equal types; 2 and 2.0 are equal, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) < 1e-9
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def _calls(expect: Mapping[str, Any], reply: Reply) -> str:
    wanted = [(call["name"], call["arguments"]) for call in expect["calls"]]
    left = list(reply.calls)
    for name, arguments in wanted:
        match = next((call for call in left if call[0] == name and _equal(call[1], arguments)), None)
        if match is None:
            said = "; ".join(f"{n}({json.dumps(a, ensure_ascii=False)})" for n, a in reply.calls) or f"no call but {short(reply.content)}"
            return f"found {said}, needed {name}({json.dumps(arguments, ensure_ascii=False)})"
        left.remove(match)
    return f"found {len(left)} calls too many" if left else ""


def _any_call(expect: Mapping[str, Any], reply: Reply) -> str:
    key = expect["argument"]
    for name, arguments in reply.calls:
        if name == expect["name"] and isinstance(arguments, dict) and str(arguments.get(key, "")).strip():
            return ""
    said = f"calls {[name for name, _ in reply.calls]}" if reply.calls else f"no call but {short(reply.content)}"
    return f"found {said}, needed a call of {expect['name']} with a {key}"


def _json(expect: Mapping[str, Any], reply: Reply) -> str:
    # One code fence around the value is let pass: the contract is about the value.
    text = re.sub(r"\A```(?:json)?\n(.*)\n```\Z", r"\1", reply.content.strip(), flags=re.DOTALL)
    try:
        found = json.loads(text)
    except ValueError:
        return f"found {short(reply.content)}, needed JSON"
    wanted = expect["value"]
    return "" if _equal(found, wanted) else f"found {short(text)}, needed {short(json.dumps(wanted, ensure_ascii=False))}"


def _contains(expect: Mapping[str, Any], reply: Reply) -> str:
    missing = [text for text in expect["texts"] if text not in reply.content]
    return f"found {short(reply.content)}, needed also {', '.join(missing)}" if missing else ""


def _word(expect: Mapping[str, Any], reply: Reply) -> str:
    said = set(re.findall(r"\w+", reply.content.lower()))
    if not said & set(expect["words"]):
        return f"found {short(reply.content)}, needed {' or '.join(expect['words'])}"
    wrong = sorted(said & set(expect.get("wrong", ())))
    return f"found also {', '.join(wrong)} in {short(reply.content)}, needed {expect['words'][0]} alone" if wrong else ""


def _stop(expect: Mapping[str, Any], reply: Reply) -> str:
    if reply.finish != "stop":
        return f"found finish reason {reply.finish!r} after {reply.completion_tokens} tokens, needed 'stop'"
    return "" if reply.content.strip() else "found an empty reply, needed some text"


RULES: dict[str, Rule] = {
    "exact": _exact,
    "integers": _integers,
    "calls": _calls,
    "any_call": _any_call,
    "json": _json,
    "contains": _contains,
    "word": _word,
    "stop": _stop,
}
