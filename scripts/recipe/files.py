"""Small files written so that a reader, or the next run after a crash, sees the whole of them or nothing."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from failure import Failure
from recipe.adapters import kernel

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def write_atomically(path: Path, content: bytes, *, mode: int = PRIVATE_FILE) -> None:
    """Replace `path` in one step. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where the file is missing or holds no JSON object. Raises PermissionError: it may hold one."""
    try:
        value = json.loads(path.read_bytes())
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def sha256(path: Path) -> str:
    """Digest of a file's content in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: str | bytes) -> str:
    """First 16 hexadecimal digits of SHA-256 over the parts, each preceded by its length."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()[:16]


def shop_of(data_dir: Path) -> Path:
    """The folder in which this process makes things; named so that a folder of a killed process is known as such."""
    own = kernel.identify(os.getpid())
    return data_dir / "unfinished" / f"{os.getpid()}-{own.start_ticks if own else 0}"


@contextlib.contextmanager
def workshop(data_dir: Path) -> Iterator[Path]:
    """This process's `shop_of` as a private folder that goes away at the end; folders of processes that were killed go away too.

    Raises Failure E_CONFIG where `data_dir` cannot be written.
    """
    shop = shop_of(data_dir)
    try:
        shop.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
    except OSError as error:
        raise Failure("E_CONFIG", found=f"DATA_DIR={data_dir}: {error.strerror}", needed="a folder of your own") from error
    for leftover in shop.parent.iterdir():
        pid, _, ticks = leftover.name.partition("-")
        owner = kernel.identify(int(pid)) if pid.isdigit() else None
        if owner is None or str(owner.start_ticks) != ticks:
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield shop
    finally:
        shutil.rmtree(shop, ignore_errors=True)


def put_in_place(made: Path, final: Path, *, is_there: bool) -> None:
    """Rename a finished folder to its final name; an unfinished or older one there is removed first. Raises OSError.

    `is_there`: another clone's start was faster, and a server may run from what it made.
    """
    if is_there:
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists():
        # Renamed away first: a folder that is half removed must never stand under the final name.
        shutil.move(final, made.with_name(made.name + ".old"))
    made.rename(final)
