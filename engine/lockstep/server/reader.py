"""The process that reads large bodies, `main` in a Python of its own, and the front's end of it. Knows no endpoint.

Reading megabytes of JSON holds the interpreter for a long time; done elsewhere, health and running streams do not feel it. In: pairs of
frames, the name of a model and a body. Out: one frame each, a pickled model or what a client is told, then its long texts, a frame for
each slice: a text of many megabytes that is made in one go holds the interpreter too. A frame is its length and data."""

import asyncio
import importlib
import io
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel

import lockstep
from lockstep.server.errors import ApiError

MEMORY_BYTES = 4 << 30
WAIT_S = 60.0
_LENGTH_BYTES, _SLICE_CHARACTERS = 8, 1 << 19

Model = TypeVar("Model", bound=BaseModel)
log = logging.getLogger("lockstep.server")


class BodyReader:
    """One process, one body at a time; another process if it ended. It ends with this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "body-reader")

    async def read(self, data: bytes | bytearray, kind: type[Model]) -> Model:
        """As `body.read_object`. Raises ApiError, 400 too if the body ends its reader."""
        value = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, data, f"{kind.__module__}:{kind.__qualname__}")
        if isinstance(value, kind):
            return value
        raise ApiError(**value)

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown()

    def _ask(self, data: bytes | bytearray, name: str) -> Any:
        if self._process is None or self._process.poll() is not None:
            self._process = _start()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        late = threading.Timer(WAIT_S, self._process.kill)
        late.start()
        try:
            for part in (name.encode(), data):
                _put(stdin, part)
            stdin.flush()
            return _Taken(io.BytesIO(_frame(stdout)), stdout).load()
        except (OSError, EOFError):
            pass
        finally:
            late.cancel()
        log.warning("a body of %d bytes ended its reader", len(data))
        self._process.kill()
        self._process.wait()
        message = f"The body of {len(data)} bytes cannot be read within {WAIT_S:g} s and {MEMORY_BYTES >> 30} GiB; needed: a simpler one."
        return {"status": 400, "message": message, "code": "invalid_json"}


def _start() -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
    command = [sys.executable, "-P", "-c", "from lockstep.server.reader import main; main()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


class _Given(pickle.Pickler):
    """Leaves long texts out; they come behind."""

    def __init__(self, target: IO[bytes]) -> None:
        super().__init__(target, protocol=5)
        self.texts = list[str]()

    def persistent_id(self, obj: Any) -> int | None:
        """Slices of a long text."""
        if type(obj) is not str or len(obj) <= _SLICE_CHARACTERS:
            return None
        self.texts.append(obj)
        return -(-len(obj) // _SLICE_CHARACTERS)


class _Taken(pickle.Unpickler):
    """Of what our own code pickled out of checked JSON. Reads long texts from `source`, in the order in which they were left out."""

    def __init__(self, pickled: IO[bytes], source: IO[bytes]) -> None:
        super().__init__(pickled)
        self._source = source

    def persistent_load(self, pid: int) -> str:
        """A text of so many slices."""
        text = ""
        for _ in range(pid):
            text += _frame(self._source).decode()
        return text


def main() -> None:
    """Serve until standard input ends."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    with suppress(EOFError):
        while True:
            told = io.BytesIO()
            given = _Given(told)
            given.dump(_read(_frame(source).decode(), _frame(source)))
            _put(target, told.getbuffer())
            for text in given.texts:
                for at in range(0, len(text), _SLICE_CHARACTERS):
                    _put(target, text[at : at + _SLICE_CHARACTERS].encode())
            target.flush()


def _read(name: str, data: bytes) -> BaseModel | dict[str, Any]:
    from lockstep.server.body import read_object

    module, _, kind = name.partition(":")
    try:
        return read_object(data, getattr(importlib.import_module(module), kind))
    except ApiError as error:
        return {"status": error.status, "message": error.message, "code": error.code, "param": error.param, "kind": error.kind}


def _put(target: IO[bytes], data: bytes | bytearray | memoryview) -> None:
    target.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    target.write(data)


def _frame(source: IO[bytes]) -> bytes:
    """Raises EOFError at the end of the other side."""
    header = source.read(_LENGTH_BYTES)
    length = int.from_bytes(header, "big")
    data = source.read(length) if len(header) == _LENGTH_BYTES else b""
    if len(header) < _LENGTH_BYTES or len(data) < length:
        raise EOFError
    return data
