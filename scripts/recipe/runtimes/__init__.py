"""Where a server runs. Each runtime starts one, tells whether it lives, and ends it without leaving anything behind."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from recipe.adapters.kernel import Identity
from recipe.record import Launch, Record


class Runtime(Protocol):
    def line(self, launch: Launch, folder: Path) -> str:
        """The start as a shell would take it."""
        ...

    def start(self, launch: Launch, folder: Path) -> Identity | None:
        """Start it, output into `folder`. Raises Failure E_START."""
        ...

    def is_alive(self, record: Record) -> bool: ...

    def end(self, record: Record, grace_s: float) -> None:
        """Ask it to finish, wait at most `grace_s` seconds, then end whatever is left of it. Raises Failure E_STOP."""
        ...


def of(launch: Launch) -> Runtime:
    from recipe.runtimes.container import ContainerRuntime
    from recipe.runtimes.process import ProcessRuntime

    return ContainerRuntime() if launch.runtime == "docker" else ProcessRuntime()
