"""The front process: binds the port, starts the engine process, serves, drains. Its exit status is what the caller waits for."""

from __future__ import annotations

import asyncio
import logging
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
from lockstep.server.app import build_app
from lockstep.server.deployment import Deployment

# Clients keep idle connections up to 90 s; a server that closes first makes them fail in between.
KEEP_ALIVE_S = 180
DRAIN_S = 10.0
WATCH_S = 1.0
EXIT_ENGINE, EXIT_WINDOW = 3, 4
# The engine's own watchdog goes first and knows more.
STALL_SLACK_S = 5.0
# What an engine that writes its kept prompts to disk may take longer to end.
PUT_AWAY_S = 10.0

log = logging.getLogger("lockstep.server")


class PortError(LockstepError):
    """The address cannot be bound."""


def serve(options: ServingOptions, engine_command: Sequence[str] = ()) -> int:
    """Serve until SIGTERM or SIGINT; 0 then, 3 if the engine cannot load, 4 if its window does not fit the memory.

    Raises LockstepError for what is wrong before that.

    `engine_command` starts the engine process, ours if it is empty; the channel's flag is appended. A second signal ends without waiting.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    listener = bind(options.host, options.port)
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


async def _serve(options: ServingOptions, engine_command: Sequence[str], listener: socket.socket) -> int:
    kill_after_s = KILL_AFTER_S + (PUT_AWAY_S if options.spill_dir else 0.0)
    engine = EngineClient(engine_command, options.step_timeout + STALL_SLACK_S, kill_after_s)
    site = Deployment.load(options, engine)
    server = FrontServer(site, engine)
    await engine.start()
    loading = asyncio.create_task(_wait_for_engine(engine, server, site.media))
    watching = asyncio.create_task(_watch(site))
    try:
        await server.serve(sockets=[listener])
    finally:
        watching.cancel()
        await engine.shutdown(0.0)
        if site.media is not None:
            await site.media.close()
        await asyncio.gather(watching, return_exceptions=True)
    return await loading


async def _wait_for_engine(engine: EngineClient, server: FrontServer, media: MediaDecoder | None) -> int:
    """0 once the engine is ready. If it cannot load there is nothing to serve: the server ends with this status, unless it ends anyway."""
    try:
        if media is not None:
            await media.start()
        facts = await engine.wait_ready()
    except (EngineDied, WorkerFault) as error:
        if not server.should_exit:
            log.error("the server cannot serve%s: %s", f" ({error.code})" if error.code else "", error)
            server.should_exit = True
            return EXIT_WINDOW if error.code == WINDOW_TOO_LARGE else EXIT_ENGINE
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
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Only `auth` knows which proxies may speak for others.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(DRAIN_S) + 5,
        )
        super().__init__(config)
        self._site, self._engine = site, engine

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handlers for the time of serving. Signals are not raised again afterwards: a drained server ends with status 0."""
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: refuse what is new, let the engine finish. Second: end at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._site.draining = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain the engine while connections finish; replies cut at the deadline end with an error event."""
        log.info("draining")
        drain = asyncio.create_task(self._engine.shutdown(DRAIN_S))
        await super().shutdown(sockets)
        if self.force_exit:
            drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
