"""The front process's end of the channel: starts the engine process, submits requests, streams their rounds, knows how it died.

Asyncio only; knows nothing of HTTP and never imports torch.
"""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from enum import StrEnum

from lockstep.channel.frames import HEADER_BYTES, FrameError, Message, body_length, decode, written
from lockstep.core.errors import DRAINING, EngineDied, EngineRejected
from lockstep.core.messages import Cancel, Failed, Loading, Ready, Rejected, Round, Shutdown, Snapshot, Submit
from lockstep.core.types import EngineRequest, RoundEvent

FD_FLAG = "--channel-fd"
KILL_AFTER_S = 5.0
WATCHES = 20


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


_Item = RoundEvent | EngineRejected | EngineDied


class EngineClient:
    """One engine process. `command` gets `--channel-fd N` appended; it must speak `core.messages` on that socket.

    An engine with work that is not heard for `stall_limit_s` is killed: one that can still act ends by itself before, with better words.
    """

    def __init__(self, command: Sequence[str], stall_limit_s: float | None = None, kill_after_s: float = KILL_AFTER_S) -> None:
        self._command, self._stall_limit_s, self._kill_after_s = list(command), stall_limit_s, kill_after_s
        self._streams: dict[str, asyncio.Queue[_Item]] = {}
        self.state = EngineState.LOADING
        self.cause = self.code = ""
        self.exit_status = 0
        self.loading = Loading("starting", 0.0)
        self.facts: Ready | None = None
        self.snapshot: Snapshot | None = None
        self._heard_s = time.monotonic()
        self._ready: asyncio.Event = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None before `start`."""
        return self._process.pid if self._process else None

    @property
    def last_step_age_s(self) -> float:
        """Seconds since the engine was last heard while it had work; 0 while idle. Grows when a step stalls."""
        busy = bool(self._streams) or (self.snapshot is not None and self.snapshot.running > 0)
        return time.monotonic() - self._heard_s if busy and self.state is not EngineState.DEAD else 0.0

    async def start(self) -> None:
        """Start the process; returns at once. `wait_ready` waits for it to load."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*self._command, FD_FLAG, str(theirs.fileno())]
            self._process = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self._tasks = [asyncio.create_task(self._read(reader))]
        self._watching = asyncio.create_task(self._watch(self._stall_limit_s)) if self._stall_limit_s else None

    async def wait_ready(self) -> Ready:
        """Facts of the engine once it has loaded, also of one that died since. Raises EngineDied with the cause if it never did."""
        await self._ready.wait()
        if self.facts is None:
            raise EngineDied(self.cause, self.code)
        return self.facts

    async def submit(self, request: EngineRequest) -> AsyncGenerator[RoundEvent]:
        """Rounds of one request, the last with `finish` set. Leaving the iterator early cancels the request.

        Raises EngineRejected before the first round if the engine does not take it, EngineDied whenever the process is gone.
        """
        if self.state is EngineState.DEAD:
            raise EngineDied(self.cause)
        if self.state is not EngineState.READY:
            raise EngineRejected(DRAINING, f"the engine is {self.state}; needed: ready. Try again later")
        stream = self._streams[request.id] = asyncio.Queue()
        finished = False
        try:
            self._send(Submit(request))
            while not finished:
                item = await stream.get()
                if isinstance(item, Exception):
                    finished = True
                    raise item
                finished = item.finish is not None
                yield item
        finally:
            self._streams.pop(request.id, None)
            if not finished:
                self.cancel(request.id)

    def cancel(self, request_id: str) -> None:
        """Ask the engine to end a request; its stream then ends with `cancelled`. Unknown ids are ignored."""
        if self.state is not EngineState.DEAD:
            self._send(Cancel(request_id))

    async def shutdown(self, deadline_s: float) -> None:
        """Let running requests finish until the deadline, then end the process; kills it if it has not ended `kill_after_s` later.

        An engine that is still loading has nothing to finish and is killed at once.
        """
        if self._process is None:
            return
        loading, grace_s = self.state is EngineState.LOADING, deadline_s + self._kill_after_s
        if self.state is not EngineState.DEAD:
            self.state = EngineState.DRAINING
            self._send(Shutdown(deadline_s))
        try:
            await asyncio.wait_for(self._process.wait(), 0.0 if loading else grace_s)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.gather(*self._tasks)

    def _send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            for part in written(message):
                self._writer.write(part)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        problem = ""
        try:
            while True:
                header = await reader.readexactly(HEADER_BYTES)
                self._take(decode(await reader.readexactly(body_length(header))))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except FrameError as error:
            problem = f"engine process sent bytes that are no message ({error}); it was ended"
        await self._bury(problem)

    async def _watch(self, limit_s: float) -> None:
        """Kill a silent engine. Silence is counted in looks, so a front that was itself stopped does not blame the engine."""
        looks = 0
        while looks < WATCHES:
            await asyncio.sleep(limit_s / WATCHES)
            looks = looks + 1 if self.last_step_age_s > limit_s / WATCHES else 0
        self.cause = f"engine process was not heard for {limit_s:g} s while it had work; it was ended"
        assert self._process is not None
        self._process.kill()

    async def _bury(self, problem: str) -> None:
        assert self._process is not None
        if problem:
            self._process.kill()
        if self._watching is not None:
            self._watching.cancel()
        status = self.exit_status = await self._process.wait()
        self.cause = problem or self.cause or death_cause(status)
        self.state = EngineState.DEAD
        if self._writer is not None:
            self._writer.close()
        for stream in self._streams.values():
            stream.put_nowait(EngineDied(self.cause))
        self._ready.set()

    def _take(self, message: Message) -> None:
        self._heard_s = time.monotonic()
        match message:
            case Round(events):
                for event in events:
                    self._deliver(event.request_id, event)
            case Snapshot():
                self.snapshot = message
            case Rejected(request_id, code, text, retry_after_s):
                self._deliver(request_id, EngineRejected(code, text, retry_after_s))
            case Loading():
                self.loading = message
            case Ready():
                self.facts = message
                if self.state is EngineState.LOADING:
                    self.state = EngineState.READY
                self._ready.set()
            case Failed(cause, code):
                self.cause, self.code = cause, code
            case _:
                raise FrameError(f"engine sent {type(message).__name__}, which only the front sends")

    def _deliver(self, request_id: str, item: _Item) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.put_nowait(item)


def death_cause(status: int, who: str = "engine process") -> str:
    """Words for a return code of a child: negative numbers are signals."""
    if status < 0:
        names = {int(number): number.name for number in signal.Signals}
        return f"{who} ended by signal {-status} ({names.get(-status, 'no standard name')})"
    return f"{who} ended with exit status {status}"
