"""Saved memory on disk, one file each, verified when read. Files outlive the process: a later one of the same build takes them over.

Knows neither what the tensors mean nor who wants them back.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

from safetensors import SafetensorError
from safetensors.torch import load, save

from lockstep.cache.saved import Saved
from lockstep.core.errors import LockstepError
from lockstep.core.plan import Spilled

_DIGEST_BYTES, _LENGTH_BYTES, _MOST_HEAD_BYTES = 32, 4, 1 << 16
_MOST_WAITING = 4
LOCK_WAIT_S = 4.0
_NAME = re.compile(r"rank(\d+)-(\d+)\.kept")

log = logging.getLogger("lockstep.spill")


class SpillError(LockstepError):
    """Memory that cannot be had back, or a folder that cannot be used."""


@dataclass(frozen=True, slots=True)
class _Head:
    """What a file says of itself; `bytes` and `sha256` are those of its tensors."""

    build: str
    number: int
    label: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Found:
    """What the head of a whole file says, and when it was last used."""

    label: str
    size_bytes: int
    used_ns: int


class SpillFolder:
    """Files `rank<r>-<number>.kept` of one rank, each with a label for whoever looks for it. Only their owner may read them.

    A file is the length of its head, the head (JSON: build, number, label, bytes and SHA-256 of the tensors), the SHA-256 of both, the
    tensors.
    `build` names all that decides their bits and shapes. Raises SpillError if the folder cannot be made or another process uses it.
    """

    def __init__(self, folder: Path, rank: int, build: str = "") -> None:
        self._folder, self._rank, self._build = folder, rank, build
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = (folder / f"rank{rank}.lock").open("w")
            _lock(self._lock_file)
        except BlockingIOError:
            raise SpillError(f"--spill-dir {folder} is in use by another server; needed: a folder of its own") from None
        except OSError as error:
            raise SpillError(f"--spill-dir {folder}: {error.strerror}; needed: a folder this user may write to") from None
        self._waiting: dict[int, tuple[str, Saved]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="spill", daemon=True)
        self._thread.start()

    def take_over(self, ranks: int) -> tuple[Spilled, ...]:
        """What earlier processes of this build left on every one of `ranks` ranks, least recently used first; all else is removed.

        For rank 0, before any rank writes. Content is verified when it is read.
        """
        found: dict[int, dict[int, _Found]] = {}
        for path in self._folder.glob("rank*-*"):
            name = _NAME.fullmatch(path.name)
            if name and (head := self._look(path, int(name[2]))):
                found.setdefault(int(name[2]), {})[int(name[1])] = head
        whole = {
            number: parts[0]
            for number, parts in found.items()
            if set(parts) == set(range(ranks)) and len({part.label for part in parts.values()}) == 1
        }
        self._remove({self._path(number, rank) for number in whole for rank in range(ranks)})
        order = sorted(whole, key=lambda number: whole[number].used_ns)
        return tuple(Spilled(number, whole[number].label, whole[number].size_bytes) for number in order)

    def write(self, number: int, tensors: Saved, label: str = "") -> None:
        """Write in the background. A failure is logged; reading then fails. Waits while too many others are still being written."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _MOST_WAITING)
            self._waiting[number] = label, tensors
            self._changed.notify_all()

    def read(self, number: int) -> Saved:
        """What was written under `number`, bit for bit. Raises SpillError if it is missing or not what was written."""
        with self._changed:
            if number in self._waiting:
                return self._waiting[number][1]
        path = self._path(number)
        try:
            with path.open("rb") as file:
                head, content = _read_head(file), file.read()
            os.utime(path)
        except OSError as error:
            raise SpillError(f"kept state {path} cannot be read ({error.strerror}); its prompt is computed again") from None
        if head is None or head.sha256 != hashlib.sha256(content).hexdigest():
            raise SpillError(f"kept state {path} is not what was written (SHA-256 differs); its prompt is computed again")
        if (head.number, head.build) != (number, self._build):
            raise SpillError(f"kept state {path} is not what was written (another state or build); its prompt is computed again")
        try:
            return load(content)
        except SafetensorError as error:
            raise SpillError(f"kept state {path} has no tensors in it ({error}); its prompt is computed again") from None

    def remove(self, number: int) -> None:
        """Forget what was written under `number`. A file that cannot be removed, from a disk that turned read-only, say, stays."""
        with self._changed:
            self._waiting.pop(number, None)
            try:
                self._path(number).unlink(missing_ok=True)
            except OSError as error:
                log.warning("kept state %s was not removed (%s)", self._path(number), error.strerror)
            self._changed.notify_all()

    def settle(self, limit_s: float | None = None) -> None:
        """Return when everything is written or has failed, or after `limit_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, limit_s)

    def close(self, limit_s: float = 0.0) -> None:
        """Write what waits for `limit_s` at most, then let go of the folder. Files stay for the next process."""
        self.settle(limit_s)
        self._stop()
        self._thread.join()
        self._lock_file.close()

    def discard(self) -> None:
        """Remove the files of all ranks, at once: whoever wrote them is not to be trusted. The others have ended."""
        self._stop()
        with suppress(OSError):
            self._remove(set())

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _remove(self, spared: set[Path]) -> None:
        for path in self._folder.glob("rank*-*"):
            if path not in spared:
                path.unlink(missing_ok=True)

    def _path(self, number: int, rank: int | None = None) -> Path:
        return self._folder / f"rank{self._rank if rank is None else rank}-{number}.kept"

    def _look(self, path: Path, number: int) -> _Found | None:
        """The head of a file, if it is whole and of this build."""
        try:
            with path.open("rb") as file:
                head, start, stat = _read_head(file), file.tell(), os.fstat(file.fileno())
        except OSError:
            return None
        if head is None or (head.number, head.build, start + head.bytes) != (number, self._build, stat.st_size):
            return None
        return _Found(head.label, stat.st_size, stat.st_mtime_ns)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                number, (label, tensors) = next(iter(self._waiting.items()))
            with self._finishing(number) as path:
                content = save(tensors)
                head = _Head(self._build, number, label, len(content), hashlib.sha256(content).hexdigest())
                _write(path, json.dumps(asdict(head)).encode(), content)

    @contextmanager
    def _finishing(self, number: int) -> Iterator[Path]:
        """A place to write to. Whatever comes of it, `number` no longer waits; a file that is not whole, or not wanted, is removed."""
        part, written = self._path(number).with_suffix(".part"), False
        try:
            yield part
            written = True
        except Exception as error:  # whatever it is, the next one is written
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("kept state %s was not written (%s); its prompt is computed again when it is asked for", self._path(number), reason)
        finally:
            with self._changed:
                wanted = self._waiting.pop(number, None) is not None
                with suppress(OSError):
                    if written and wanted:
                        part.replace(self._path(number))
                    part.unlink(missing_ok=True)
                self._changed.notify_all()


def _lock(file: TextIO) -> None:
    """Raises BlockingIOError if another process has it and does not end meanwhile, as one whose front was killed does."""
    until_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(LOCK_WAIT_S / 40)


def _read_head(file: BinaryIO) -> _Head | None:
    """The head of a file, which is then read up to its tensors; None if it is not what was written."""
    length = file.read(_LENGTH_BYTES)
    head = file.read(min(int.from_bytes(length, "little"), _MOST_HEAD_BYTES))
    return _Head(**json.loads(head)) if file.read(_DIGEST_BYTES) == hashlib.sha256(length + head).digest() else None


def _write(path: Path, head: bytes, content: bytes) -> None:
    start = len(head).to_bytes(_LENGTH_BYTES, "little") + head
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        for piece in (start, hashlib.sha256(start).digest(), content):
            file.write(piece)
