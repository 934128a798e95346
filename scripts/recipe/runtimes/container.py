"""The server as a Docker container. Its argument list is data, made by `container_argv`; this module only carries it out."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from recipe.adapters import process
from recipe.adapters.kernel import Identity
from recipe.failure import Failure
from recipe.record import Launch, Record

ASK_S = 30.0
RUN_LABEL = "recipe.run"


class ContainerRuntime:
    def line(self, launch: Launch, folder: Path) -> str:
        return shlex.join(launch.argv_in(folder))

    def start(self, launch: Launch, folder: Path) -> Identity | None:
        done = process.ask(launch.argv_in(folder), os.environ, timeout_s=ASK_S)
        if done.status != 0:
            raise Failure(
                "E_START", found=f"docker run ended with status {done.status}: {_last(done.output)}", needed="a started container"
            )
        return None

    def is_alive(self, record: Record) -> bool:
        shown = "{{.State.Running}} {{index .Config.Labels " + f'"{RUN_LABEL}"' + "}}"
        done = process.ask(["docker", "inspect", "--format", shown, record.launch.container], os.environ, timeout_s=ASK_S)
        return done.status == 0 and done.output.split() == ["true", str(record.folder)]

    def end(self, record: Record, grace_s: float) -> None:
        name = record.launch.container
        if process.ask(["docker", "inspect", name], os.environ, timeout_s=ASK_S).status != 0:
            return
        self._ask(["docker", "stop", "--time", str(int(grace_s)), name], timeout_s=grace_s + ASK_S)
        if record.folder.is_dir():
            process.run(["docker", "logs", "--timestamps", name], os.environ, log=record.folder / "docker.log")
        self._ask(["docker", "rm", name], timeout_s=ASK_S)

    def _ask(self, argv: list[str], *, timeout_s: float) -> None:
        done = process.ask(argv, os.environ, timeout_s=timeout_s)
        if done.status != 0:
            raise Failure(
                "E_STOP", found=f"{shlex.join(argv)} ended with status {done.status}: {_last(done.output)}", needed="a removed container"
            )


def _last(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "no output"
