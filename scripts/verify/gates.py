"""The gates: exactness of a live server, told by the hash of a reply's token ids. Every check compares the server with itself.

Serial means `draft: false`, one request at a time, from an empty cache: the definition everything else has to equal.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from failure import Failure
from verify import haystack
from verify.client import OFF, Server, ask, health_of
from verify.judge import Reply
from verify.suite import NEEDLE_TOKENS, REPLY_ROOM_TOKENS, Check, Options, Result, bundled, request_of, skip, verdict

Request = Mapping[str, Any]
TOGETHER = 4
REPLY_TOKENS, LONG_REPLY_TOKENS = 96, 48
SETTLE_S, POLL_S = 10.0, 0.2
SAMPLINGS: dict[str, Request] = {
    "greedy": {"temperature": 0},
    "warm": {"temperature": 0.6, "top_k": -1, "top_p": 1.0, "seed": 5},
    "cut": {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 6, "ignore_eos": True},
}
KINDS = {"prose": "prose", "code": "code", "counting": "counting", "json_instruction": "JSON", "tool_calls": "tool calls"}
REUSE_TOKENS = (100, 1000, 4000)
WINDOW = "window"


@dataclass(frozen=True)
class Asked:
    """One request under a name for people."""

    name: str
    request: Request


def _cold() -> Request:
    """No other request shares this one's prompt states."""
    return {"cache_salt": secrets.token_hex(8)}


def _send(server: Server, request: Request, *more: Request) -> Reply:
    fields: dict[str, Any] = {**OFF}
    for one in more:
        fields |= one
    return ask(server, request, fields)


def difference(found: Reply, wanted: Reply) -> str:
    """Empty if both replies are the same token ids, else what was found and needed."""
    for reply in (found, wanted):
        if reply.error or not reply.token_sha:
            return reply.error or "found no lockstep.token_sha in the reply, needed a server that tells the hash of its token ids"
    if found.token_sha == wanted.token_sha:
        return ""
    counts = f"{found.completion_tokens} and {wanted.completion_tokens} tokens"
    return f"found {found.token_sha}, needed {wanted.token_sha}: {counts}, {found.content[:40]!r} and {wanted.content[:40]!r}"


@dataclass
class Serial:
    """Serial replies, each asked for once."""

    known: dict[str, Reply] = field(default_factory=dict)

    def of(self, server: Server, asked: Asked) -> Reply:
        """The reply everything else is compared with."""
        if asked.name not in self.known:
            self.known[asked.name] = _send(server, asked.request, _cold(), {"draft": False})
        return self.known[asked.name]


def cases(kind: str) -> list[Asked]:
    """Two bundled prompts of a kind under every sampling."""
    found = bundled("gate") if kind in ("prose", "code") else [{**case, "kind": kind} for case in bundled(kind)]
    chosen = [case for case in found if case["kind"] == kind][:2]
    return [
        Asked(f"{case['id']} {name}", {**request_of(case), "max_tokens": REPLY_TOKENS, **sampling})
        for case in chosen
        for name, sampling in SAMPLINGS.items()
    ]


def _compared(server: Server, serial: Serial, asked: Sequence[Asked], replies: Iterable[Reply]) -> list[tuple[str, str]]:
    return [(one.name, difference(reply, serial.of(server, one))) for one, reply in zip(asked, replies, strict=True)]


def _drafted(check: Check, reasons: list[tuple[str, str]], replies: Sequence[Reply], where: str = "") -> Result:
    """The verdict, unless nothing was drafted: then equal replies show nothing of drafts."""
    tokens, drafts = sum(reply.completion_tokens for reply in replies), sum(reply.drafted_tokens for reply in replies)
    if not drafts and not any(reason for _, reason in reasons):
        return skip(check, "the server drafted nothing (DRAFTER)")
    return verdict(check, reasons, [f"{where}{tokens} tokens, {drafts} drafts"])


def _at_once(server: Server, asked: Sequence[Asked]) -> list[Reply]:
    with ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(lambda one: _send(server, one.request, _cold()), asked))


def gate(options: Options) -> tuple[Check, ...]:
    """Drafted against serial, kind by kind, alone; then all of them four at a time; then serial against the references of another run."""
    serial = Serial()

    def alone(server: Server, check: Check, options: Options) -> Result:
        asked = cases(check.name)
        replies = [_send(server, one.request, _cold()) for one in asked]
        return _drafted(check, _compared(server, serial, asked, replies), replies)

    def together(server: Server, check: Check, options: Options) -> Result:
        asked = [one for kind in KINDS for one in cases(kind)]
        return verdict(check, _compared(server, serial, asked, _at_once(server, asked)))

    def as_before(server: Server, check: Check, options: Options) -> Result:
        return _referred(check, [(one.name, serial.of(server, one)) for kind in KINDS for one in cases(kind)], options.references)

    kinds = [Check(kind, f"{title}, drafted", 1.0, alone) for kind, title in KINDS.items()]
    before = [Check("references", "serial, as before", 1.0, as_before)] if options.references else []
    return (*kinds, Check("together", f"all, {TOGETHER} at once", 1.0, together), *before)


def _referred(check: Check, replies: Sequence[tuple[str, Reply]], path: Path | None) -> Result:
    """Each reply's hash against that of its name in the file; a file that is not there is written. Raises Failure E_CONFIG."""
    found = {name: reply.token_sha or reply.error for name, reply in replies}
    if path is None or not path.exists():
        missing = [name for name, reply in replies if not reply.token_sha]
        if path and not missing:
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return skip(check, f"no hash of {missing[0]}" if missing else f"nothing to compare with; {len(found)} hashes are in {path} now")
    try:
        wanted = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise Failure("E_CONFIG", found=f"{path}: {error}", needed="a file that verify gate --references wrote") from None
    told = ((name, one, wanted.get(name)) for name, one in found.items())
    return verdict(check, [(name, "" if one == before else f"found {one}, needed {before}") for name, one, before in told])


def gatelong(options: Options) -> tuple[Check, ...]:
    """Drafted against serial behind long prompts, greedy and sampled; without lengths given, the last one fills the served window."""
    scale = [1.0]

    def behind(server: Server, check: Check, options: Options) -> Result:
        room = server.context - REPLY_ROOM_TOKENS if server.context else max(NEEDLE_TOKENS)
        tokens = room if check.name == WINDOW else int(check.name)
        if tokens > room:
            return skip(check, f"the server's window has {server.context} tokens")
        # The haystack's own estimate is a safe one; the prompts before tell how many tokens a length really takes.
        case = haystack.build(bundled("needles"), round(tokens / scale[0]))
        asked = [Asked(name, {**request_of(case), "max_tokens": LONG_REPLY_TOKENS, **SAMPLINGS[name]}) for name in ("greedy", "cut")]
        replies = [_send(server, one.request, _cold()) for one in asked]
        prompt_tokens = replies[0].prompt_tokens
        scale[0] *= prompt_tokens / tokens if prompt_tokens else 1.0
        return _drafted(check, _compared(server, Serial(), asked, replies), replies, f"behind {prompt_tokens} tokens: ")

    names = [str(tokens) for tokens in options.lengths] or [*map(str, NEEDLE_TOKENS), WINDOW]
    return tuple(Check(name, f"{name}{'' if name == WINDOW else ' tokens'}, drafted", 1.0, behind) for name in names)


def reuse(options: Options) -> tuple[Check, ...]:
    """Replies from kept prompt states against replies of an empty cache."""
    return (
        Check("identical", "identical prompt again", 1.0, _identical),
        Check("next_turn", "next turn", 1.0, _next_turn),
        Check("shared", "shared beginning", 1.0, _shared),
        Check("at_once", f"{TOGETHER} of a beginning at once", 1.0, _beginning_at_once),
    )


def _text(tokens: int) -> str:
    return haystack.build(bundled("needles"), tokens)["messages"][0]["content"]


def _chat(*contents: str) -> Request:
    roles = ("system", "user", "assistant", "user")
    return {"messages": [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)], "max_tokens": 32}


def _warm(server: Server, request: Request, salt: Request) -> tuple[str, int]:
    """What is wrong with the reply from kept states, and how many tokens they spared."""
    warm, cold = _send(server, request, salt), _send(server, request, _cold())
    if cold.cached_tokens:
        return f"found {cold.cached_tokens} cached tokens under a cache_salt of its own, needed 0", 0
    if not warm.error and not warm.cached_tokens:
        return f"found 0 cached tokens of {warm.prompt_tokens}, needed some: kept prompt states", 0
    return difference(warm, cold), warm.cached_tokens


def _rounds(check: Check, lengths: Sequence[int], one: Callable[[int, Request], tuple[str, int]]) -> Result:
    """`one` length under a salt of its own, greedy and sampled."""
    found = [(f"{tokens} {name}", *one(tokens, SAMPLINGS[name])) for tokens in lengths for name in ("greedy", "cut")]
    return verdict(check, [(name, reason) for name, reason, _ in found], [f"cached tokens: {', '.join(str(n) for *_, n in found)}"])


def _lengths(server: Server, options: Options) -> list[int]:
    return [n for n in options.lengths or REUSE_TOKENS if not server.context or n + REPLY_ROOM_TOKENS <= server.context]


def _identical(server: Server, check: Check, options: Options) -> Result:
    def one(tokens: int, sampling: Request) -> tuple[str, int]:
        salt, request = _cold(), {**_chat("Be brief.", _text(tokens)), **sampling}
        _send(server, request, salt)
        return _warm(server, request, salt)

    return _rounds(check, _lengths(server, options), one)


def _next_turn(server: Server, check: Check, options: Options) -> Result:
    def one(tokens: int, sampling: Request) -> tuple[str, int]:
        salt = _cold()
        first = _send(server, {**_chat("Be brief.", _text(tokens)), **sampling}, salt)
        turn = _chat("Be brief.", _text(tokens), first.content or "Yes.", "Say yes.")
        return (first.error, 0) if first.error else _warm(server, {**turn, **sampling}, salt)

    return _rounds(check, _lengths(server, options), one)


def _shared(server: Server, check: Check, options: Options) -> Result:
    def one(tokens: int, sampling: Request) -> tuple[str, int]:
        salt = _cold()
        _send(server, {**_chat(_text(tokens), "Hello"), **sampling}, salt)
        return _warm(server, {**_chat(_text(tokens), "Who are you?"), **sampling}, salt)

    return _rounds(check, _lengths(server, options), one)


def _beginning_at_once(server: Server, check: Check, options: Options) -> Result:
    tokens = max(_lengths(server, options), default=100)
    salt, questions = _cold(), ("Hello", "Who are you?", "Say yes.", "Say no.")
    asked = [Asked(question, {**_chat(_text(tokens), question), **salt}) for question in questions]
    with ThreadPoolExecutor(TOGETHER) as pool:
        replies = list(pool.map(lambda one: _send(server, one.request), asked))
    reasons = [(one.name, difference(reply, _send(server, one.request, _cold()))) for one, reply in zip(asked, replies, strict=True)]
    return verdict(check, reasons, [f"cached tokens: {', '.join(str(reply.cached_tokens) for reply in replies)}"])


def ranks(options: Options) -> tuple[Check, ...]:
    """What several ranks say of each other, and that they chose the same tokens. Raises Failure E_UNCHECKED if there is one rank."""
    return (Check("settings", "settings of the ranks", 1.0, _settings), Check("tokens", "tokens on every rank", 1.0, _tokens))


def _told(server: Server) -> tuple[int, Mapping[str, Any]]:
    """Number of ranks and what health tells of them."""
    told = health_of(server).get("ranks")
    told = told if isinstance(told, dict) else {}
    count = told.get("count", 1)
    if not isinstance(count, int) or count < 2:
        raise Failure(
            "E_UNCHECKED", found="the server has one rank", needed="a server of several ranks", remedy="RANKS=2 ./start.sh restart"
        )
    return count, told


def _agreement(told: Mapping[str, Any], name: str, count: int) -> list[tuple[str, str]]:
    """One verdict a rank: its digest `name` is that of rank 0."""
    digests = [str(digest) for digest in told.get(name) or ()]
    digests += ["nothing"] * (count - len(digests))
    return [
        (f"rank {rank}", "" if digest == digests[0] != "nothing" else f"found {name} {digest}, needed {digests[0]}")
        for rank, digest in enumerate(digests)
    ]


def _settings(server: Server, check: Check, options: Options) -> Result:
    count, told = _told(server)
    return verdict(check, _agreement(told, "settings", count))


def _tokens(server: Server, check: Check, options: Options) -> Result:
    """Requests alone and at once; then every rank has to tell the same digest of all it chose since it started."""
    serial, asked = Serial(), [one for kind in KINDS for one in cases(kind)[:2]]
    reasons = _compared(server, serial, asked, _at_once(server, asked))
    until = time.monotonic() + SETTLE_S
    count, told = _told(server)
    while len(set(told.get("steps") or (0, 1))) > 1 and time.monotonic() < until:
        time.sleep(POLL_S)
        count, told = _told(server)
    return verdict(check, [*reasons, *_agreement(told, "chosen", count)], [f"{max(told.get('steps') or (0,))} steps since the start"])
