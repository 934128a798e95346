"""Where a server runs. Each runtime starts one, tells whether it lives, and ends it without leaving anything behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from recipe.adapters.kernel import Identity
from recipe.record import Launch, Record

RUNNING = "running"
# Beyond the time that replies get: the engine's own end, and the last events on their way.
SLACK_S = 10.0
Status = str | int | None


class Runtime(Protocol):
    def line(self, launch: Launch, folder: Path) -> str:
        """The start as a shell would take it."""
        ...

    def start(self, launch: Launch, folder: Path) -> Identity | None:
        """Start it, output into `folder`. Raises Failure E_START."""
        ...

    def work(self, launch: Launch, folder: Path, log: Path, limit_s: float, tell: Callable[[], None]) -> int | None:
        """Carry a command out, output into `log`, `tell` called meanwhile; its exit status, None if it was ended after `limit_s` seconds.

        Leaves nothing running. Raises Failure E_START.
        """
        ...

    def status(self, record: Record) -> Status:
        """RUNNING, or how it ended: its exit status, minus the number of a signal, None where nobody knows."""
        ...

    def end(self, record: Record, grace_s: float) -> None:
        """Ask it to finish, wait at most `grace_s` and SLACK_S seconds, then end whatever is left of it. Raises Failure E_STOP."""
        ...


def of(launch: Launch) -> Runtime:
    from recipe.runtimes.container import ContainerRuntime
    from recipe.runtimes.process import ProcessRuntime

    return ContainerRuntime() if launch.runtime == "docker" else ProcessRuntime()
