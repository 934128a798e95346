"""Saved memory on disk, one file each, verified when read. Serves one process: what an earlier one left in the folder is removed.

Knows neither what the tensors mean nor who wants them back.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from lockstep.cache.saved import Saved
from lockstep.core.errors import LockstepError

_DIGEST_BYTES = 32
_MOST_WAITING = 4

log = logging.getLogger("lockstep.spill")


class SpillError(LockstepError):
    """Memory that cannot be had back, or a folder that cannot be used."""


class SpillFolder:
    """Files `rank<r>-<number>.kept` of one rank: the SHA-256 of number and content, then the tensors. Only their owner may read them.

    Raises SpillError if the folder cannot be made or another process uses it.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = (folder / f"rank{rank}.lock").open("w")
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in folder.glob(f"rank{rank}-*"):
                leftover.unlink()
        except BlockingIOError:
            raise SpillError(f"--spill-dir {folder} is in use by another server; needed: a folder of its own") from None
        except OSError as error:
            raise SpillError(f"--spill-dir {folder}: {error.strerror}; needed: a folder this user may write to") from None
        self._waiting: dict[int, Saved] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="spill", daemon=True)
        self._thread.start()

    def write(self, number: int, tensors: Saved) -> None:
        """Write in the background. A failure is logged; reading then fails. Waits while too many others are still being written."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _MOST_WAITING)
            self._waiting[number] = tensors
            self._changed.notify_all()

    def read(self, number: int) -> Saved:
        """What was written under `number`, bit for bit. Raises SpillError if it is missing or not what was written."""
        with self._changed:
            if number in self._waiting:
                return self._waiting[number]
        path = self._path(number)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SpillError(f"kept state {path} cannot be read ({error.strerror}); its prompt is computed again") from None
        if content[:_DIGEST_BYTES] != _digest(number, content[_DIGEST_BYTES:]):
            raise SpillError(f"kept state {path} is not what was written (SHA-256 differs); its prompt is computed again")
        try:
            return load(content[_DIGEST_BYTES:])
        except SafetensorError as error:
            raise SpillError(f"kept state {path} has no tensors in it ({error}); its prompt is computed again") from None

    def remove(self, number: int) -> None:
        """Forget what was written under `number`."""
        with self._changed:
            self._waiting.pop(number, None)
            self._path(number).unlink(missing_ok=True)
            self._changed.notify_all()

    def settle(self) -> None:
        """Return when everything is written or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Stop writing and remove all files; the folder may be used by another process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        for path in self._folder.glob(f"rank{self._rank}-*"):
            path.unlink(missing_ok=True)
        self._lock_file.close()

    def _path(self, number: int) -> Path:
        return self._folder / f"rank{self._rank}-{number}.kept"

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                number, tensors = next(iter(self._waiting.items()))
            with self._finishing(number):
                content = save(tensors)
                _write(self._path(number), _digest(number, content) + content)

    @contextmanager
    def _finishing(self, number: int) -> Iterator[None]:
        """Whatever comes of it, `number` no longer waits; a file that is not whole, or no longer wanted, is removed."""
        path, failed = self._path(number), True
        try:
            yield
            failed = False
        except OSError as error:
            log.warning("kept state %s was not written (%s); its prompt is computed again when it is asked for", path, error.strerror)
        finally:
            with self._changed:
                wanted = self._waiting.pop(number, None) is not None
                if failed or not wanted:
                    path.unlink(missing_ok=True)
                self._changed.notify_all()


def _digest(number: int, content: bytes) -> bytes:
    return hashlib.sha256(b"%d " % number + content).digest()


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
