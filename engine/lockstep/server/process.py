"""The front process: binds the port, starts the engine process, serves, drains. Its exit status is what the caller waits for."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType

import uvicorn
import uvloop

from lockstep.channel.client import KILL_AFTER_S, EngineClient
from lockstep.config.serving import ServingOptions
from lockstep.core.errors import WINDOW_TOO_LARGE, EngineDied, LockstepError
from lockstep.media.decoder import MediaDecoder, WorkerFault
from lockstep.server import connection
from lockstep.server.app import build_app
from lockstep.server.connection import MAX_CONNECTIONS, Connection
from lockstep.server.deployment import Deployment

# After the engine's end: time for the last events to reach their clients.
LAST_WORDS_S = 5
WATCH_S, SWITCH_S = 1.0, 0.0005
SPARE_DESCRIPTORS = 256
EXIT_ENGINE, EXIT_WINDOW = 3, 4
# The engine's own watchdog goes first and knows more.
STALL_SLACK_S = 5.0
# What an engine that writes its kept prompts to disk may take longer to end.
PUT_AWAY_S = 10.0

log = logging.getLogger("lockstep.server")


class PortError(LockstepError):
    """The address cannot be bound."""


def serve(options: ServingOptions, engine_command: Sequence[str] = ()) -> int:
    """Serve until SIGTERM or SIGINT; 0 then, 4 if the window does not fit the memory, else the status of an engine that cannot load.

    Raises LockstepError for what is wrong before that.

    `engine_command` starts the engine process, ours if it is empty; the channel's flag is appended. A second signal ends without waiting.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    listener = bind(options.host, options.port)
    _allow_descriptors(MAX_CONNECTIONS + SPARE_DESCRIPTORS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        command = engine_command or [sys.executable, "-m", "lockstep", "engine", *options.to_argv()]
        return runner.run(_serve(options, command, listener))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortError naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PortError(
            f"{host} port {port} cannot be bound ({error.strerror}); needed: a free port of this machine. Set --port or stop its user"
        ) from None
    return listener


def _allow_descriptors(count: int) -> None:
    """Raise the soft limit to `count`, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else min(count, hard), hard))


async def _serve(options: ServingOptions, engine_command: Sequence[str], listener: socket.socket) -> int:
    kill_after_s = KILL_AFTER_S + (PUT_AWAY_S if options.spill_dir else 0.0)
    engine = EngineClient(engine_command, options.step_timeout + STALL_SLACK_S, kill_after_s)
    site = Deployment.load(options, engine)
    server = FrontServer(site, engine)
    # What is there now stays: collections need not look at it, and a thread gives way to health and streams ten times as often.
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    await engine.start()
    loading = asyncio.create_task(_wait_for_engine(engine, server, site.media))
    watching = asyncio.create_task(_watch(site))
    try:
        await server.serve(sockets=[listener])
    finally:
        watching.cancel()
        await engine.shutdown(0.0)
        await site.grammars.close()
        if site.media is not None:
            await site.media.close()
        site.reader.close()
        await asyncio.gather(watching, return_exceptions=True)
    return await loading


async def _wait_for_engine(engine: EngineClient, server: FrontServer, media: MediaDecoder | None) -> int:
    """0 once the engine is ready. If it cannot load there is nothing to serve: the server ends with this status, unless it ends anyway."""
    try:
        if media is not None:
            await media.start()
        facts = await engine.wait_ready()
    except (EngineDied, WorkerFault) as error:
        if not server.should_exit and not server.is_draining:
            log.error("the server cannot serve%s: %s", f" ({error.code})" if error.code else "", error)
            server.should_exit = True
            return EXIT_WINDOW if error.code == WINDOW_TOO_LARGE else max(EXIT_ENGINE, engine.exit_status)
        return 0
    log.info("ready: context %d tokens, %d slots, pool %d tokens, %s", facts.context, facts.slots, facts.pool_tokens, facts.device)
    return 0


async def _watch(site: Deployment) -> None:
    was = site.status
    while True:
        await asyncio.sleep(WATCH_S)
        if site.status != was:
            log.warning("status %s, was %s%s", site.status, was, f": {site.engine.cause}" if site.engine.cause else "")
            was = site.status


class FrontServer(uvicorn.Server):
    """uvicorn, told to drain the engine when it is told to stop."""

    def __init__(self, site: Deployment, engine: EngineClient) -> None:
        config = uvicorn.Config(
            build_app(site),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Only `auth` knows which proxies may speak for others.
            proxy_headers=False,
            timeout_keep_alive=connection.KEEP_ALIVE_S,
            timeout_graceful_shutdown=LAST_WORDS_S,
        )
        super().__init__(config)
        self._site, self._engine = site, engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None

    @property
    def is_draining(self) -> bool:
        """True from the first signal on."""
        return self._site.draining

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handlers for the time of serving. Signals are not raised again afterwards: a drained server ends with status 0."""
        self._loop = asyncio.get_running_loop()
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: answer what is new with 503, let the engine finish, end then. Second: end at once."""
        if self._site.draining or self._loop is None:
            self.force_exit = self.should_exit = True
            return
        self._site.draining = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        log.info("draining")
        self._drain = asyncio.create_task(self._drain_engine())

    async def _drain_engine(self) -> None:
        """Replies cut at the deadline end with an error event; the port stays open until then, so that a client is told."""
        await self._engine.shutdown(self._site.options.drain_timeout)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, let connections take their last events."""
        if self._drain is not None and self.force_exit:
            self._drain.cancel()
        await super().shutdown(sockets)
        if self._drain is not None:
            await asyncio.gather(self._drain, return_exceptions=True)
