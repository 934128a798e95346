"""The checks of the suite with their thresholds, run one after the other against one server. Prints nothing and knows no command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from failure import Failure
from verify import haystack
from verify.client import OFF, Server, ask
from verify.judge import Reply, judge

Case = Mapping[str, Any]
EFFORTS = ("low", "high", "max")
BURST = 3
NEEDLE_TOKENS = (1000, 4000, 12000)
REPLY_ROOM_TOKENS = 400


@dataclass(frozen=True)
class Options:
    """`only` names checks, empty means all. `lengths` of prompts; those that do not fit the server's context are left out.

    `references` is a file of hashes from another run of a gate.
    """

    only: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    references: Path | None = None


@dataclass(frozen=True)
class Result:
    """`right` of `asked` cases; `needed` right ones pass. `skipped` says why nothing was asked. `wrong` pairs case ids with reasons."""

    name: str
    title: str
    right: int
    asked: int
    needed: int
    seconds: float = 0.0
    skipped: str = ""
    wrong: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_passed(self) -> bool:
        return bool(self.skipped) or (self.asked > 0 and self.right >= self.needed)


@dataclass(frozen=True)
class Check:
    """`share` of the cases must be right."""

    name: str
    title: str
    share: float
    run: Callable[[Server, Check, Options], Result]


def bundled(name: str) -> Any:
    """The parsed fixture `name`.json."""
    return json.loads(files("verify").joinpath("fixtures", f"{name}.json").read_text(encoding="utf-8"))


def request_of(case: Case) -> dict[str, Any]:
    """What of a case is sent."""
    return {key: case[key] for key in ("messages", "max_tokens", "tools", "response_format") if key in case}


def verdict(check: Check, reasons: Sequence[tuple[str, str]], notes: Sequence[str] = ()) -> Result:
    """From case ids and what was wrong with each, nothing where it was right."""
    wrong = tuple((identity, reason) for identity, reason in reasons if reason)
    needed = round(check.share * len(reasons))
    return Result(check.name, check.title, len(reasons) - len(wrong), len(reasons), needed, wrong=wrong, notes=tuple(notes))


def skip(check: Check, why: str) -> Result:
    """Nothing was asked."""
    return Result(check.name, check.title, 0, 0, 0, skipped=why)


def plain(server: Server, check: Check, options: Options) -> Result:
    """Each case once, thinking off."""
    return verdict(check, [(case["id"], judge(case["expect"], ask(server, request_of(case)))) for case in bundled(check.name)])


def pictured(server: Server, check: Check, options: Options) -> Result:
    if not server.has_vision:
        return skip(check, "the server does not say that it takes images")
    return plain(server, check, options)


def formatted(server: Server, check: Check, options: Options) -> Result:
    """The contracts of `json_instruction` again, half through `json_object`, half through `json_schema`."""
    reasons: list[tuple[str, str]] = []
    for number, case in enumerate(bundled("json_instruction")):
        schema = _schema(case["expect"]["value"])
        strict = {"type": "json_schema", "json_schema": {"name": "record", "schema": schema, "strict": True}}
        form = strict if number % 2 else {"type": "json_object"}
        reply = ask(server, {**request_of(case), "response_format": form})
        if not reasons and reply.error.startswith(("status 400", "status 501")) and "response_format" in reply.error:
            return skip(check, "the server does not take response_format")
        reasons.append((case["id"], judge(case["expect"], reply)))
    return verdict(check, reasons)


def _schema(record: Mapping[str, Any]) -> dict[str, Any]:
    kinds: dict[type, dict[str, Any]] = {
        str: {"type": "string"},
        bool: {"type": "boolean"},
        int: {"type": "integer"},
        float: {"type": "number"},
    }
    parts: dict[str, Any] = {}
    for key, value in record.items():
        parts[key] = {"type": "array", "items": kinds[type(value[0])]} if isinstance(value, list) else kinds[type(value)]
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


def needles(server: Server, check: Check, options: Options) -> Result:
    """Three codes asked for at each length; a length is right only if all three are found."""
    parts = bundled("needles")
    wanted = options.lengths or NEEDLE_TOKENS
    lengths = [n for n in wanted if not server.context or n + REPLY_ROOM_TOKENS <= server.context]
    if not lengths:
        return skip(check, f"no needle length of {wanted} fits the server's {server.context} tokens")
    reasons, notes = [], []
    for tokens in lengths:
        case = haystack.build(parts, tokens)
        reply = ask(server, request_of(case))
        found = sum(text in reply.content for text in case["expect"]["texts"])
        notes.append(f"{reply.prompt_tokens or tokens} tokens: {found}/3")
        reasons.append((case["id"], judge(case["expect"], reply)))
    return verdict(check, reasons, notes)


def efforts(server: Server, check: Check, options: Options) -> Result:
    """Every question at low, high and max effort: right answers, and reasoning that grows with the effort over all questions."""
    reasons: list[tuple[str, str]] = []
    length = dict.fromkeys(EFFORTS, 0)
    for case in bundled("efforts"):
        for effort in EFFORTS:
            reply = ask(server, request_of(case), {"reasoning_effort": effort, "chat_template_kwargs": {"enable_thinking": True}})
            length[effort] += len(reply.reasoning)
            reasons.append((f"{case['id']}-{effort}", judge(case["expect"], reply)))
    grows = 0 < length["low"] < length["high"] < length["max"]
    said = ", ".join(f"{effort} {characters}" for effort, characters in length.items())
    reasons.append(("efforts-order", "" if grows else f"found reasoning characters {said}, needed low < high < max"))
    return verdict(check, reasons, [f"reasoning characters: {said}"])


def thinking_off(server: Server, check: Check, options: Options) -> Result:
    """With thinking switched off no reasoning comes back, and none of its tags in the answer."""
    reasons = []
    for case in bundled("exact_word")[:4]:
        reply = ask(server, request_of(case), OFF)
        leaked = reply.reasoning or (reply.content if "think>" in reply.content else "")
        reasons.append((case["id"], reply.error or (f"found reasoning {leaked[:80]!r}, needed none" if leaked else "")))
    return verdict(check, reasons)


def bursts(server: Server, check: Check, options: Options) -> Result:
    """The cases in bursts of three simultaneous requests."""
    cases = bundled("bursts")
    reasons: list[tuple[str, str]] = []
    with ThreadPoolExecutor(BURST) as pool:
        for start in range(0, len(cases), BURST):
            burst = cases[start : start + BURST]
            replies: list[Reply] = list(pool.map(lambda case: ask(server, request_of(case)), burst))
            reasons += [(case["id"], judge(case["expect"], reply)) for case, reply in zip(burst, replies, strict=True)]
    return verdict(check, reasons)


CHECKS = (
    Check("exact_word", "exact word", 1.0, plain),
    Check("counting", "counting", 1.0, plain),
    Check("tool_calls", "tool calls", 0.95, plain),
    Check("json_instruction", "JSON by instruction", 0.9, plain),
    Check("response_format", "JSON by response_format", 0.95, formatted),
    Check("needles", "needles, three depths", 1.0, needles),
    Check("images", "images", 1.0, pictured),
    Check("shapes", "shapes", 22 / 24, pictured),
    Check("efforts", "effort levels", 1.0, efforts),
    Check("thinking_off", "thinking off", 1.0, thinking_off),
    Check("end_of_turn", "end of turn", 1.0, plain),
    Check("bursts", "tool bursts, 3 at once", 0.9, bursts),
)


def chosen(checks: Sequence[Check], options: Options) -> Sequence[Check]:
    """Those of `checks` to run. Raises Failure E_CONFIG for a name that is none of them."""
    known = {check.name: check for check in checks}
    unknown = [name for name in options.only if name not in known]
    if unknown:
        raise Failure("E_CONFIG", found=f"--only {','.join(unknown)}", needed=f"names of {', '.join(known)}")
    return tuple(known[name] for name in options.only) or checks


def run(server: Server, checks: Sequence[Check], options: Options) -> Iterator[Result]:
    """One result a check, in order, as each ends."""
    for check in checks:
        began = time.monotonic()
        result = check.run(server, check, options)
        yield Result(**{**_fields(result), "seconds": round(time.monotonic() - began, 1)})


def _fields(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in Result.__dataclass_fields__}
