"""The front's way to compiled grammars: starts the worker when the first one is asked for, keeps what it compiled, names what went wrong.

Asyncio; never imports the grammar library.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path

import msgspec

from grammars.protocol import Form, GrammarError, Vocabulary
from lockstep.core.errors import LockstepError
from lockstep.core.processes import spawned
from lockstep.core.recent import Recent

CACHE_BYTES = 64 << 20
MOST_WAITING = 64
LIMIT_S, MEMORY_BYTES = 10, 2 << 30
_START_S = 60.0
# What the worker may take beyond a grammar's own limit, which it keeps itself.
_SLACK_S = 5.0
# How a worker shows that ended, or does not answer.
_GONE = (TimeoutError, asyncio.IncompleteReadError, ConnectionError)


class CompilerFault(LockstepError):
    """No process that compiles grammars comes up, or it ended."""


class CompilerBusy(LockstepError):
    """More grammars wait than this server compiles."""


class GrammarCompiler:
    """Compiles for one vocabulary, each grammar within `limit_s` and `memory_bytes`. `close` it at the end."""

    def __init__(self, vocabulary: Vocabulary, limit_s: int = LIMIT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._vocabulary, self._limits = msgspec.msgpack.encode(vocabulary), (limit_s, memory_bytes)
        self._worker: _Worker | None = None
        self._turn, self._waiting = asyncio.Lock(), 0
        self._kept = Recent[str, bytes](CACHE_BYTES)

    async def compile(self, form: Form) -> tuple[str, bytes]:
        """Digest of `form` and its compiled grammar. Raises GrammarError for one that cannot be used, CompilerBusy, CompilerFault."""
        # Ten times as fast as the standard library, which would hold up the event loop over a thousand tools.
        told = msgspec.json.encode(form)
        digest = hashlib.sha256(told).hexdigest()[:16]
        if (known := self._kept.get(digest)) is not None:
            return digest, known
        if self._waiting >= MOST_WAITING:
            raise CompilerBusy(f"{self._waiting} grammars wait to be compiled, as many as this server takes; try again later")
        self._waiting += 1
        try:
            async with self._turn:
                compiled = self._kept.get(digest) or await self._compile(told)
        finally:
            self._waiting -= 1
        self._kept.put(digest, compiled, len(compiled))
        return digest, compiled

    async def close(self) -> None:
        """End the worker and what it compiles."""
        if self._worker is not None:
            await self._worker.end()

    async def _compile(self, form: bytes) -> bytes:
        """One at a time: a slow grammar holds up others for its own limit, and no other request."""
        try:
            if self._worker is None or self._worker.has_ended:
                self._worker = await _Worker.start(self._vocabulary, self._limits)
            async with asyncio.timeout(self._limits[0] + _SLACK_S):
                told = msgspec.msgpack.decode(await self._worker.answer(form))
        except BaseException as error:
            # Whoever left an answer unread, or found none, leaves no worker to the next.
            worker, self._worker = self._worker, None
            if worker is not None:
                await worker.end()
            if isinstance(error, _GONE):
                how = "does not answer" if isinstance(error, TimeoutError) else "ended"
                raise CompilerFault(f"the process that compiles grammars {how}; send the request again") from None
            raise
        if isinstance(told, str):
            raise GrammarError(told)
        return told


class _Worker:
    """One process of `grammars.worker`, which ends with its standard input."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, vocabulary: bytes, limits: tuple[int, int]) -> _Worker:
        """Raises CompilerFault if it does not come up."""
        command = [sys.executable, "-P", "-m", "grammars.worker", *map(str, limits)]
        environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
        worker = cls(await spawned(command, environment))
        try:
            async with asyncio.timeout(_START_S):
                await worker.answer(vocabulary)
        except BaseException as error:
            await worker.end()
            if isinstance(error, _GONE):
                raise CompilerFault("no process that compiles grammars comes up; needed: the package xgrammar") from None
            raise
        return worker

    @property
    def has_ended(self) -> bool:
        """True if something killed it while nobody asked."""
        return self._process.returncode is not None

    async def answer(self, body: bytes) -> bytes:
        """Its answer to a frame. Raises IncompleteReadError or ConnectionError if it ends instead."""
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None
        assert writer is not None
        if writer.is_closing():
            # uvloop says so in an error of another kind.
            raise ConnectionResetError
        writer.write(len(body).to_bytes(4, "big") + body)
        await writer.drain()
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    async def end(self) -> None:
        """Kill it; a fork ends by its limits at the latest."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
