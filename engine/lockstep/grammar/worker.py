"""The process that compiles grammars: `python -m lockstep.grammar.worker SECONDS BYTES`, which is what each may take in a fork of its own.

A grammar that kills its compiler ends that fork and nothing else. In: the vocabulary, then pairs (number, form). Out: an empty frame once
it is ready, then triples (number, state, what came of it), in whatever order they are done. A frame is MessagePack behind its length.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lockstep.grammar.backend import XGrammar
from lockstep.grammar.protocol import GrammarError, Vocabulary

DONE, REFUSED, DIED = "done", "refused", "died"
_POLL_S = 0.05
_PIPE_BYTES = 1 << 16
_END = b"\0"


@dataclass(slots=True)
class _Child:
    number: int
    pid: int
    pipe: int
    until_s: float
    data: bytearray = field(default_factory=bytearray)


def main(limit_s: int, memory_bytes: int) -> None:
    """Serve until standard input ends."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    backend = XGrammar(Vocabulary.decode(_exactly(int.from_bytes(_exactly(4) or b"", "big")) or b""))
    _tell(())
    children: dict[int, _Child] = {}
    waiting = selectors.DefaultSelector()
    waiting.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select(_POLL_S if children else None):
            if key.fd == 0:
                header = _exactly(4)
                if header is None:
                    _kill(children.values())
                    return
                number, form = msgspec.msgpack.decode(_exactly(int.from_bytes(header, "big")) or b"")
                child = _start(backend, number, form, limit_s, memory_bytes)
                children[child.pipe] = child
                waiting.register(child.pipe, selectors.EVENT_READ)
            elif part := os.read(key.fd, _PIPE_BYTES):
                children[key.fd].data += part
            else:
                waiting.unregister(key.fd)
                _reap(children.pop(key.fd))
        _kill(child for child in children.values() if time.monotonic() > child.until_s)


def _start(backend: XGrammar, number: int, form: dict[str, Any], limit_s: int, memory_bytes: int) -> _Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        # An open end here would hide from the front that the worker has gone.
        for end in (reader, 0, 1):
            os.close(end)
        _bound(limit_s, memory_bytes)
        _compile(backend, form, writer)
    os.close(writer)
    return _Child(number, pid, reader, time.monotonic() + limit_s)


def _bound(limit_s: int, memory_bytes: int) -> None:
    """From here on this process may take so much more memory, and hardly more time than it is waited for."""
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = {resource.RLIMIT_AS: own + memory_bytes, resource.RLIMIT_CPU: limit_s + 1, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))


def _compile(backend: XGrammar, form: dict[str, Any], pipe: int) -> None:
    """The fork's whole life. Its answer counts only if it ends with `_END`."""
    status = 1
    try:
        data = msgspec.msgpack.encode(_answer(backend, form)) + _END
        while data:
            data = data[os.write(pipe, data) :]
        status = 0
    finally:
        os._exit(status)


def _answer(backend: XGrammar, form: dict[str, Any]) -> tuple[str, bytes | str]:
    try:
        return DONE, backend.compile(form)
    except GrammarError as error:
        return REFUSED, str(error)
    except MemoryError:
        return DIED, "it takes too much memory to compile; needed: a simpler one"


def _reap(child: _Child) -> None:
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    if child.data.endswith(_END) and status == 0:
        state, told = msgspec.msgpack.decode(bytes(child.data[:-1]))
    elif time.monotonic() > child.until_s:
        state, told = DIED, "it takes too long to compile; needed: a simpler one"
    else:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
        state, told = DIED, f"it ended its compiler ({how}); needed: a simpler one"
    _tell((child.number, state, told))


def _kill(children: Iterable[_Child]) -> None:
    for child in children:
        os.kill(child.pid, signal.SIGKILL)


def _exactly(count: int) -> bytes | None:
    """So many bytes of standard input and not one more, so that what is behind them still wakes the loop."""
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            return None
        data += part
    return data


def _tell(message: tuple[Any, ...]) -> None:
    body = msgspec.msgpack.encode(message)
    data = len(body).to_bytes(4, "big") + body
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
