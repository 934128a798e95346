"""The front's way to compiled grammars: starts the worker when the first one is asked for, keeps what it compiled, names what went wrong.

Asyncio; never imports the grammar library.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import sys
from collections import OrderedDict
from pathlib import Path

import msgspec

import lockstep
from lockstep.core.errors import LockstepError
from lockstep.grammar.protocol import Form, GrammarError, Vocabulary

CACHE_BYTES = 64 << 20
PARALLEL, MOST_WAITING = 2, 64
LIMIT_S, MEMORY_BYTES = 10, 2 << 30
_START_S = 60.0


class CompilerFault(LockstepError):
    """No process that compiles grammars comes up, or it ended."""


class CompilerBusy(LockstepError):
    """More grammars wait than this server compiles."""


class GrammarCompiler:
    """Compiles for one vocabulary, each grammar within `limit_s` and `memory_bytes`. `close` it at the end."""

    def __init__(self, vocabulary: Vocabulary, limit_s: int = LIMIT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._vocabulary, self._limits = vocabulary.encode(), (limit_s, memory_bytes)
        self._worker: _Worker | None = None
        self._starting = asyncio.Lock()
        self._turns, self._waiting = asyncio.Semaphore(PARALLEL), 0
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0

    async def compile(self, form: Form) -> tuple[str, bytes]:
        """Digest of `form` and its compiled grammar. Raises GrammarError for one that cannot be used, CompilerBusy, CompilerFault."""
        digest = hashlib.sha256(json.dumps(form).encode()).hexdigest()[:16]
        if digest in self._cache:
            self._cache.move_to_end(digest)
            return digest, self._cache[digest]
        if self._waiting >= MOST_WAITING:
            raise CompilerBusy(f"{self._waiting} grammars wait to be compiled, as many as this server takes; try again later")
        self._waiting += 1
        try:
            async with self._turns:
                compiled = self._cache.get(digest) or await (await self._running()).compile(form)
        finally:
            self._waiting -= 1
        self._remember(digest, compiled)
        return digest, compiled

    async def close(self) -> None:
        """End the worker and what it compiles."""
        if self._worker is not None:
            await self._worker.end()

    async def _running(self) -> _Worker:
        async with self._starting:
            if self._worker is None or self._worker.is_gone:
                self._worker = await _Worker.start(self._vocabulary, self._limits)
            return self._worker

    def _remember(self, digest: str, compiled: bytes) -> None:
        if digest not in self._cache:
            self._cache[digest] = compiled
            self._cached_bytes += len(compiled)
        while self._cached_bytes > CACHE_BYTES:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])


class _Worker:
    """One process of `grammar.worker`. Its forks are its own matter; it ends with its standard input."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[tuple[str, bytes | str]]] = {}
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, vocabulary: bytes, limits: tuple[int, int]) -> _Worker:
        """Raises CompilerFault if it does not come up."""
        command = [sys.executable, "-P", "-m", "lockstep.grammar.worker", *map(str, limits)]
        environment = {"PYTHONPATH": str(Path(lockstep.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
        pipe, quiet = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=quiet, env=environment)
        worker = cls(process)
        try:
            async with asyncio.timeout(_START_S):
                await worker._tell(vocabulary)
                await worker._frame()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            await worker.end()
            raise CompilerFault("no process that compiles grammars comes up; needed: the package xgrammar") from None
        worker._reading = asyncio.create_task(worker._read())
        return worker

    @property
    def is_gone(self) -> bool:
        return self._reading is None or self._reading.done()

    async def compile(self, form: Form) -> bytes:
        """Raises GrammarError with the worker's words, CompilerFault if it ended."""
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._tell(msgspec.msgpack.encode((number, form)))
            _, told = await answer
        except ConnectionError:
            raise _ended() from None
        finally:
            self._asked.pop(number, None)
        if isinstance(told, str):
            raise GrammarError(told)
        return told

    async def end(self) -> None:
        """Kill it; its forks end by their limits at the latest."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                number, state, told = msgspec.msgpack.decode(await self._frame())
                if (answer := self._asked.get(number)) is not None and not answer.done():
                    answer.set_result((state, told))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(_ended())

    async def _tell(self, body: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(len(body).to_bytes(4, "big") + body)
        await self._process.stdin.drain()

    async def _frame(self) -> bytes:
        assert self._process.stdout is not None
        length = int.from_bytes(await self._process.stdout.readexactly(4), "big")
        return await self._process.stdout.readexactly(length)


def _ended() -> CompilerFault:
    return CompilerFault("the process that compiles grammars ended; send the request again")
