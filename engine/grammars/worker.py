"""The process that compiles grammars: `python -m grammars.worker SECONDS BYTES`, which is what each may take in a fork of its own.

A grammar that kills its compiler ends that fork and nothing else. In: the vocabulary, then forms in JSON. Out: an empty frame once it is
ready, then for each form its compiled grammar, or words for who sent it. A frame has 4 bytes of length; what is not JSON is MessagePack.
"""

import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from grammars.backend import XGrammar
from grammars.protocol import GrammarError, Vocabulary

_PIPE_BYTES = 1 << 16
_END = b"\0"


def main(limit_s: int, memory_bytes: int) -> None:
    """Serve until standard input ends."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    # uvloop leaves its children a second copy of each end; in a fork it would hide from the front that the worker has gone.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    backend = XGrammar(msgspec.msgpack.decode(_frame() or b"", type=Vocabulary))
    _tell(b"")
    while (form := _frame()) is not None:
        _tell(msgspec.msgpack.encode(_compiled(backend, json.loads(form), limit_s, memory_bytes)))


def _compiled(backend: XGrammar, form: dict[str, Any], limit_s: int, memory_bytes: int) -> bytes | str:
    """What a fork says, as long as it says it in time and ends well."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_fork(backend, form, (reader, 0, 1), writer, limit_s, memory_bytes)
    os.close(writer)
    told, until_s = b"", time.monotonic() + limit_s
    while select.select([reader], [], [], max(0.0, until_s - time.monotonic()))[0] and (part := os.read(reader, _PIPE_BYTES)):
        told += part
    is_late = time.monotonic() >= until_s
    if is_late:
        os.kill(pid, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if told.endswith(_END):
        return msgspec.msgpack.decode(told[:-1])
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
    return f"it {'takes too long to compile' if is_late else f'ended its compiler ({how})'}; needed: a simpler one"


def _be_fork(backend: XGrammar, form: dict[str, Any], others: tuple[int, ...], pipe: int, limit_s: int, memory_bytes: int) -> NoReturn:
    """The fork's whole life. Its answer counts only if it ends with `_END`."""
    try:
        # For the same reason.
        for end in others:
            os.close(end)
        own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = {
            resource.RLIMIT_AS: own + memory_bytes,
            resource.RLIMIT_CPU: limit_s + 1,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: 0,
        }
        for kind, most in limits.items():
            resource.setrlimit(kind, (most, most))
        try:
            answer = backend.compile(form)
        except GrammarError as error:
            answer = str(error)
        except MemoryError:
            answer = "it takes too much memory to compile; needed: a simpler one"
        _write(pipe, msgspec.msgpack.encode(answer) + _END)
        os._exit(0)
    finally:
        os._exit(1)


def _frame() -> bytes | None:
    header = _exactly(4)
    return None if header is None else _exactly(int.from_bytes(header, "big"))


def _exactly(count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            return None
        data += part
    return data


def _tell(body: bytes) -> None:
    _write(1, len(body).to_bytes(4, "big") + body)


def _write(end: int, data: bytes) -> None:
    while data:
        data = data[os.write(end, data) :]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
