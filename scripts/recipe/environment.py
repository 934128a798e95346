"""A Python environment made once from a hash-locked list and shared by every build that uses the same list."""

import contextlib
import os
import platform
import site
import sys
from collections.abc import Sequence
from pathlib import Path

from failure import Failure
from recipe import files
from recipe.job import Job
from recipe.plan import Action, Task
from recipe.pytorch import Own, left_out

READY = "ready.json"
# pip's note about a later pip would be the last line, in place of why it failed.
PIP = ("-m", "pip", "--disable-pip-version-check")
ONLY_LOCKED = ("--require-hashes", "--only-binary=:all:", "--no-deps", "--progress-bar=off")


def into(place: Path) -> tuple[str, ...]:
    """Options of `pip install` for exactly this environment: a user's own pip settings may name another place for packages."""
    return ("--no-user", "--target=", "--root=/", f"--prefix={place}")


class Environment:
    """`name` is also the name of the lock file in requirements/; the folder's name carries the digest of what decides its content.

    With `torch` the list is taken without it, and who uses the environment has to see that one's folder too.
    """

    def __init__(self, name: str, job: Job, torch: Own | None = None) -> None:
        self._job = job
        self._name = name
        self._lock = job.config.root / "requirements" / f"{name}.lock"
        self._torch = torch
        self.digest = files.digest(self._lock_bytes(), python_tag(), *((torch.version, torch.folder) if torch else ()))
        self.place = job.data_dir / "environments" / f"{name}-{self.digest}"

    def _lock_bytes(self) -> bytes:
        try:
            return self._lock.read_bytes()
        except OSError as error:
            raise Failure("E_IMAGE", found=f"{self._lock}: {error.strerror}", needed="the list of packages with their hashes") from error

    @property
    def python(self) -> Path:
        return self.place / "bin" / "python"

    @property
    def packages(self) -> Path:
        return self.place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def is_ready(self) -> bool:
        """Whole, of this very list, and its interpreter still there."""
        told = files.read_json(self.place / READY)
        return told is not None and told.get("digest") == self.digest and self.python.exists()

    def actions(self, shop: Path) -> Sequence[Action]:
        """Made in `shop`, renamed when whole."""
        made, listed = shop / self._name, self._lock
        python = str(made / "bin" / "python")
        job = self._job
        listing = []
        if self._torch:
            listed = shop / f"{self._name}.list"
            said = f"put {self._lock} without torch, of which {self._torch.version} is there, into {listed}"
            listing = [Task(said, lambda: self._list(listed))]
        return (
            *listing,
            job.command("E_VENV", sys.executable, "-m", "venv", str(made), fetches=True),
            job.command("E_IMAGE", python, *PIP, "install", *ONLY_LOCKED, *into(made), "-r", str(listed), fetches=True),
            Task(f"mark {made} ready, then rename it to {self.place}", lambda: self._finish(made)),
        )

    def _list(self, listed: Path) -> None:
        listed.write_text(left_out(self._lock_bytes().decode(), keeps_compiler=False), encoding="utf-8")

    def _finish(self, made: Path) -> None:
        files.write_json(made / READY, {"digest": self.digest, "python": python_tag()})
        files.put_in_place(made, self.place, is_there=self.is_ready())

    def adopt(self) -> None:
        """Let this program import the environment's packages; this program's interpreter made it.

        After an update the one of before serves until a start has made the new one: a server that runs can be looked at and ended.
        """
        # One of another user is told by who needs it.
        with contextlib.suppress(PermissionError):
            made = self.place if self.is_ready() else self._earlier()
            if made is not None:
                site.addsitedir(str(made / self.packages.relative_to(self.place)))

    def _earlier(self) -> Path | None:
        there = self.place.parent.glob(f"{self._name}-*")
        made = [place for place in there if (files.read_json(place / READY) or {}).get("python") == python_tag()]
        return max(made, key=lambda place: place.stat().st_mtime, default=None)


def python_tag() -> str:
    """What an environment depends on besides its list: interpreter, its place, machine."""
    return f"{sys.implementation.cache_tag} {os.path.realpath(sys.executable)} {platform.machine()}"
