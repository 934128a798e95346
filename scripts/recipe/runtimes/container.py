"""The server as a Docker container. Its flags are data, made by `container.py`; this module only carries them out."""

import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from failure import Failure
from recipe import container, files
from recipe.adapters import containers
from recipe.adapters.containers import DockerFault
from recipe.adapters.kernel import Identity
from recipe.record import ENGINE, RUN, Launch, Record
from recipe.runtimes import RUNNING, SLACK_S, Status

LOG = "docker.log"
POLL_S = 0.5


class ContainerRuntime:
    def line(self, launch: Launch, folder: Path) -> str:
        return shlex.join(launch.argv_in(folder))

    def start(self, launch: Launch, folder: Path) -> Identity | None:
        options = container.in_run(launch.options, RUN, str(folder))
        try:
            self._lend(launch, options)
            containers.start(launch.image, launch.command, options)
        except (DockerFault, OSError) as error:
            raise Failure("E_START", found=f"the container cannot be started: {error}", needed="a started container") from error
        return None

    def _lend(self, launch: Launch, options: dict) -> None:
        """Make the mounts usable for the container's user. Raises Failure E_START or E_CONFIG, or OSError."""
        uid, gid = map(int, options["user"].split(":"))
        if launch.lent_key:
            files.write_atomically(Path(launch.lent_key), f"{launch.key()}\n".encode())
            _give(Path(launch.lent_key), uid, gid)
        for mount in options["mounts"]:
            source = Path(mount["Source"])
            if not mount["ReadOnly"]:
                source.mkdir(parents=True, exist_ok=True, mode=files.PRIVATE_FOLDER)
                _give(source, uid, gid)
                continue
            closed = next(_closed(source, uid), None)
            if closed is not None:
                raise Failure(
                    "E_START",
                    found=f"user {uid} of the container may not read {closed}",
                    needed="files that everybody may read, as a start by root gives the server no rights",
                    remedy=f"chmod -R a+rX {shlex.quote(str(source))}, or start as the files' owner",
                )

    def work(self, launch: Launch, folder: Path, log: Path, limit_s: float, tell: Callable[[], None]) -> int | None:
        name, until = launch.container, time.monotonic() + limit_s
        try:
            seen = containers.look(name)
            if seen is not None and container.RUN_LABEL in seen.labels:
                # Of a start that was killed.
                containers.remove(name, log)
            self.start(launch, folder)
            try:
                while (seen := containers.look(name)) is not None and seen.is_running:
                    if time.monotonic() > until:
                        return None
                    tell()
                    time.sleep(POLL_S)
                return None if seen is None else seen.status
            finally:
                containers.remove(name, log)
        except DockerFault as error:
            raise Failure("E_START", found=f"container {name}: {error}", needed="a container that does its work") from error

    def status(self, record: Record) -> Status:
        there, here = record.launch.settings.get(ENGINE, ""), containers.endpoint(os.environ)
        needed = "the engine in which the server was started"
        if there and there != here:
            found = f"the server runs in the engine at {there}, this command was told of {here}"
            raise Failure("E_DOCKER", found=found, needed=needed, remedy=f"the same with {ENGINE}={there}")
        try:
            seen = containers.look(record.launch.container)
        except DockerFault as error:
            # Nobody knows whether it lives.
            raise Failure("E_DOCKER", found=f"{here}: {error}", needed=needed) from error
        if seen is None or seen.labels.get(container.RUN_LABEL) != str(record.folder):
            return None
        return RUNNING if seen.is_running else seen.status

    def end(self, record: Record, grace_s: float) -> None:
        name = record.launch.container
        self.status(record)
        try:
            record.folder.mkdir(parents=True, exist_ok=True, mode=files.PRIVATE_FOLDER)
            seen = containers.look(name)
            if seen is not None and seen.labels.get(container.RUN_LABEL) == str(record.folder):
                containers.stop(name, grace_s + SLACK_S)
                containers.remove(name, record.folder / LOG)
        except DockerFault as error:
            raise Failure("E_STOP", found=f"container {name}: {error}", needed="a removed container") from error
        except OSError as error:
            raise Failure("E_LOG", found=f"{record.folder / LOG}: {error.strerror}", needed="the output of the container") from error
        if record.launch.lent_key:
            Path(record.launch.lent_key).unlink(missing_ok=True)


def _give(path: Path, uid: int, gid: int) -> None:
    """Root gives a file or folder to the container's user; everybody else is that user, or root of a rootless engine's own."""
    if os.geteuid() == 0:
        os.chown(path, uid, gid)


def _closed(place: Path, uid: int) -> Iterator[Path]:
    """What below `place`, hidden files apart, a user without rights cannot read; nothing where the container's user is the caller."""
    if os.geteuid() != 0:
        return
    for path in (place, *place.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(place).parts):
            continue
        facts = path.stat()
        needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(facts.st_mode) else 0)
        if facts.st_uid != uid and facts.st_mode & needed != needed:
            yield path
