"""The server as a process of this host, in a session of its own. Finds every process of a run by a mark in its environment."""

import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

from failure import Failure
from recipe import runlog
from recipe.adapters import kernel, process
from recipe.adapters.kernel import Identity
from recipe.record import MARK, Launch, Record
from recipe.runtimes import RUNNING, SLACK_S, Status

POLL_S = 0.05
KILL_WAIT_S = 5.0


class ProcessRuntime:
    def line(self, launch: Launch, folder: Path) -> str:
        told = [f"{name}={value}" for name, value in self._environment(launch, folder).items()]
        words = ["env", "-i", *told, "setsid", *launch.argv_in(folder)]
        return f"cd {shlex.quote(launch.cwd)} && {shlex.join(words)} >>{shlex.quote(str(folder / runlog.SERVER_LOG))} 2>&1 &"

    def _environment(self, launch: Launch, folder: Path) -> dict[str, str]:
        return {**launch.environment, MARK: folder.name}

    def start(self, launch: Launch, folder: Path) -> Identity | None:
        try:
            pid = process.start(
                launch.argv_in(folder), self._environment(launch, folder), log=folder / runlog.SERVER_LOG, cwd=Path(launch.cwd)
            )
        except OSError as error:
            raise Failure(
                "E_START", found=f"{launch.argv[0]} cannot be run: {error.strerror}", needed="the engine as the image step built it"
            ) from error
        return kernel.identify(pid)

    def work(self, launch: Launch, folder: Path, log: Path, limit_s: float, tell: Callable[[], None]) -> int | None:
        until = time.monotonic() + limit_s

        def tick() -> None:
            if time.monotonic() > until:
                raise TimeoutError
            tell()

        try:
            return process.run(launch.argv_in(folder), self._environment(launch, folder), log=log, on_tick=tick)
        except TimeoutError:
            return None

    def status(self, record: Record) -> Status:
        if record.identity is None:
            return None
        ended = kernel.reap(record.identity.pid)
        return RUNNING if kernel.is_alive(record.identity) else ended

    def end(self, record: Record, grace_s: float) -> None:
        if record.identity is not None and self.status(record) == RUNNING:
            self._send(record.identity, signal.SIGTERM)
            self._wait(record, grace_s + SLACK_S)
        for one in self._members(record):
            self._send(one, signal.SIGKILL)
        if not self._wait(record, KILL_WAIT_S):
            left = ", ".join(f"{one.pid} ({kernel.command_name(one.pid)})" for one in self._members(record))
            raise Failure("E_STOP", found=f"process {left} does not end", needed="no process of this run")

    def _members(self, record: Record) -> list[Identity]:
        """Every living process of the run: the leader, and children that outlived it."""
        found = {one.pid: one for one in kernel.marked(MARK, record.run)}
        if record.identity is not None and self.status(record) == RUNNING:
            found[record.identity.pid] = record.identity
        found.pop(os.getpid(), None)
        return list(found.values())

    def _wait(self, record: Record, limit_s: float) -> bool:
        until = time.monotonic() + limit_s
        while self._members(record):
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def _send(self, identity: Identity, number: signal.Signals) -> None:
        try:
            kernel.send(identity, number)
        except PermissionError as error:
            raise Failure("E_STOP", found=f"process {identity.pid} is another user's", needed="who started the server, or root") from error
