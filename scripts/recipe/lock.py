"""The one lock of the host side: start, restart, stop and prepare never overlap on one STATE_DIR."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from failure import Failure
from recipe.adapters import kernel
from recipe.files import PRIVATE_FOLDER


@contextlib.contextmanager
def hold(state_dir: Path, verb: str) -> Iterator[None]:
    """Hold the lock, or raise Failure E_LOCK with the owner's verb and process number. The kernel frees it when this process ends."""
    path = state_dir / "lock"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failure("E_CONFIG", found=f"STATE_DIR={state_dir}: {error.strerror}", needed="a folder of your own") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure("E_LOCK", found=f"{owner(path)} holds {path}", needed="no other start, restart, stop or prepare") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "verb": verb}).encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)


def owner(path: Path) -> str:
    """The holder in words, from what it wrote into the lock."""
    try:
        told = json.loads(path.read_text())
        return f"{told['verb']} (process {told['pid']}, {kernel.command_name(told['pid'])})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
