"""Pictures and clips through sandboxed workers: each file gets a process of its own, which is killed when it is done or late.

Asyncio; never imports a decoder. Results are kept by what the file holds, for one owner each."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lockstep
from lockstep.core.errors import LockstepError
from lockstep.core.processes import spawned
from lockstep.core.recent import Recent
from lockstep.media.limits import LIMITS, MIB, Rules
from lockstep.media.source import MediaError, file_of

PARALLEL = 4
MOST_WAITING = 128
CACHE_BYTES = 256 * MIB
# What a picture of detail "low" may take: 512 x 512 pixels.
LOW_TOKENS = 361
_START_S = 30.0


class WorkerFault(LockstepError):
    """No worker can be started on this machine."""


class DecoderBusy(LockstepError):
    """More files wait for a worker than this server holds."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One picture or pair of frames: `pixels` uint8 [frames, height, width, 3] and their digest, hex SHA-256 with the sizes."""

    frames: int
    pixels: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """A file as the model sees it. `tokens` of each segment; `seconds` of each segment of a clip, empty for a picture."""

    kind: str
    height: int
    width: int
    tokens: int
    seconds: tuple[float, ...]
    segments: tuple[Segment, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the pixels."""
        return sum(len(segment.pixels) for segment in self.segments)


class MediaDecoder:
    """Decodes by the rules of a checkpoint's processor. `start` it before use, `close` it at the end."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self.level = rules, ""
        self._turns, self._waiting = asyncio.Semaphore(PARALLEL), 0
        self._spare: asyncio.Task[_Worker] | None = None
        self._kept = Recent[tuple[str, str, str, bool], Decoded](CACHE_BYTES)

    async def start(self) -> None:
        """Start the first worker and learn how well it is locked in. Raises WorkerFault."""
        for kind in LIMITS:
            worker = await _Worker.start(kind)
            self.level = worker.level
            await worker.end()

    async def close(self) -> None:
        """End the spare worker."""
        spare, self._spare = self._spare, None
        if spare is not None:
            await asyncio.gather(spare, return_exceptions=True)
            if not spare.cancelled() and spare.exception() is None:
                await spare.result().end()

    async def decode(self, url: str, kind: str, owner: str, low: bool = False) -> Decoded:
        """The picture or clip of a data URL. Raises MediaError for one that cannot be used, DecoderBusy past the queue, WorkerFault.

        `low` asks for a small picture."""
        data, digest = await asyncio.to_thread(_file_and_digest, url, kind)
        key = (owner, digest, kind, low)
        if (known := self._kept.get(key)) is not None:
            return known
        if self._waiting >= MOST_WAITING:
            raise DecoderBusy(f"{self._waiting} pictures and clips wait to be decoded, as many as this server takes; try again later")
        self._waiting += 1
        try:
            async with self._turns:
                decoded = await self._run(kind, data, self._order(kind, len(data), low))
        finally:
            self._waiting -= 1
        self._kept.put(key, decoded, decoded.size_bytes)
        return decoded

    def _order(self, kind: str, size: int, low: bool) -> dict[str, Any]:
        rules, limits = self._rules, LIMITS[kind]
        least, most = rules.tokens[kind]
        most, frames = min(most, LOW_TOKENS if low else limits.tokens), min(rules.frames, limits.frames)
        return {"size": size, "block": rules.block, "least": least, "most": most, "rate": rules.rate, "max_frames": frames}

    async def _run(self, kind: str, data: bytearray, order: dict[str, Any]) -> Decoded:
        worker, limit_s = await self._take(kind), LIMITS[kind].wait_s
        try:
            async with asyncio.timeout(limit_s):
                head = await worker.decode(order, data)
                step, size, count = _cut(kind, head, order["block"])
                parts = [await worker.pixels(size) for _ in range(count)]
        except TimeoutError:
            raise MediaError(f"takes more than {limit_s:g} s to decode; needed: a smaller or simpler file") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise MediaError("ended its decoder; needed: an intact file that is not too large to decode") from None
        finally:
            await worker.end()
        tokens = head["height"] * head["width"] // order["block"] ** 2
        segments = await asyncio.to_thread(lambda: tuple(_segment(step, head, part) for part in parts))
        return Decoded(kind, head["height"], head["width"], tokens, tuple(head["seconds"]), segments)

    async def _take(self, kind: str) -> _Worker:
        """A fresh worker; pictures find one that has already started, unless something ended it meanwhile."""
        spare, self._spare = (self._spare, None) if kind == "picture" else (None, self._spare)
        worker = await _left_of(spare) if spare else None
        worker = worker or await _Worker.start(kind)
        if self._spare is None:
            self._spare = asyncio.create_task(_Worker.start("picture"))
        return worker


class _Worker:
    """One process of `pixels`, locked in and waiting for its only order."""

    def __init__(self, process: asyncio.subprocess.Process, level: str) -> None:
        self._process, self.level = process, level

    @classmethod
    async def start(cls, kind: str) -> _Worker:
        """Raises WorkerFault if it does not come up."""
        command = [sys.executable, "-P", "-m", "pixels", kind]
        environment = {"PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
        environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        worker = cls(await spawned(command, environment), "")
        try:
            async with asyncio.timeout(_START_S):
                worker.level = (await worker._head())["level"]
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            raise WorkerFault("no process that decodes pictures and clips comes up; needed: the packages pillow and av") from None
        finally:
            if not worker.level:
                await worker.end()
        return worker

    async def decode(self, order: dict[str, Any], data: bytes | bytearray) -> dict[str, Any]:
        """Head of the pixels that follow. Raises MediaError with the worker's words, IncompleteReadError or ConnectionError if it died."""
        text = json.dumps(order).encode()
        await self._put(len(text).to_bytes(4, "big") + text)
        for at in range(0, len(data), MIB):
            await self._put(data[at : at + MIB])
        head = await self._head()
        if "error" in head:
            raise MediaError(f"cannot be used: {head['error']}")
        return head

    async def pixels(self, size: int) -> bytes:
        """The next `size` bytes of them, taken a MiB at a time: the event loop would stand still for all at once."""
        assert self._process.stdout is not None
        pieces = [await self._process.stdout.readexactly(min(MIB, size - at)) for at in range(0, size, MIB)]
        return await asyncio.to_thread(b"".join, pieces)

    async def end(self) -> None:
        """Kill it, whatever it does."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def _put(self, data: bytes | bytearray) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            # uvloop says so in an error of another kind.
            raise ConnectionResetError
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def _head(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = int.from_bytes(await self._process.stdout.readexactly(4), "big")
        return json.loads(await self._process.stdout.readexactly(min(length, MIB)))


async def _left_of(spare: asyncio.Task[_Worker]) -> _Worker | None:
    """The spare worker, if it came up and is still there."""
    try:
        worker = await spare
    except WorkerFault:
        return None
    return None if worker.has_ended else worker


def _file_and_digest(url: str, kind: str) -> tuple[bytearray, str]:
    data = file_of(url, kind)
    return data, hashlib.sha256(data).hexdigest()


def _cut(kind: str, head: dict[str, Any], block: int) -> tuple[int, int, int]:
    """Frames of a segment, its bytes, number of segments. Raises MediaError for sizes no honest worker sends."""
    height, width, step = head["height"], head["width"], 1 if kind == "picture" else 2
    count = head["frames"] // step
    if height % block or width % block or head["frames"] % step or height * width // block**2 * count > LIMITS[kind].tokens:
        raise MediaError("ended its decoder; needed: an intact file")
    return step, step * height * width * 3, count


def _segment(step: int, head: dict[str, Any], pixels: bytes) -> Segment:
    digest = hashlib.sha256(f"{step} {head['height']} {head['width']} ".encode())
    digest.update(pixels)
    return Segment(step, pixels, digest.hexdigest())
