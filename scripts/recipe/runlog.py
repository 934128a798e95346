"""Run folders and their archives in LOG_DIR: one folder a run while it lives, one private archive after it."""

import contextlib
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from failure import Failure
from recipe import secrets
from recipe.files import PRIVATE_FOLDER

NAME = re.compile(r"glm53-\d{8}T\d{6}Z-\d+(-\d+)?")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
CURRENT = "current"
SERVER_LOG, PREPARE_LOG, SMOKE_FILE, SETTINGS_FILE = "server.log", "prepare.log", "smoke.json", "settings.json"
RANK_LOG = "rank-{rank}.log"
TAIL_BYTES = 64 * 1024
FOLLOW_EVERY_S = 0.3
IN_MEMORY_BYTES = 16 << 20


def create(log_dir: Path) -> Path:
    """A fresh run folder, `current` pointing at it. Raises Failure E_LOG."""
    stem = f"glm53-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        folder, count = log_dir / stem, 1
        while folder.exists() or archive_of(folder).exists():
            count += 1
            folder = log_dir / f"{stem}-{count}"
        folder.mkdir(mode=PRIVATE_FOLDER)
        _point(log_dir, folder)
    except OSError as error:
        raise _failure(log_dir, error) from error
    return folder


def _point(log_dir: Path, folder: Path) -> None:
    beside = log_dir / f".{CURRENT}.{os.getpid()}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(folder.name)
    beside.replace(log_dir / CURRENT)


def archive_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".tar.gz")


def archive(folder: Path, keep: int, hidden: Sequence[str] = ()) -> Path | None:
    """Pack a run folder without the `hidden` texts, then remove it, then drop archives beyond the newest `keep`.

    None where there is no such folder. The archive appears under its name only when whole; until then the raw logs stay. One that is
    there already is of an earlier try that ended between packing and removing, and stays as it is. Raises Failure E_LOG.
    """
    if not NAME.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
        return None
    target = archive_of(folder)
    try:
        if not target.exists():
            with packing(target) as tar:
                tar.add(folder, arcname=folder.name, recursive=False)
                for path in sorted(folder.rglob("*")):
                    add(tar, path, f"{folder.name}/{path.relative_to(folder)}", hidden)
        shutil.rmtree(folder)
        current = folder.parent / CURRENT
        if current.is_symlink() and os.readlink(current) == folder.name:
            current.unlink()
    except OSError as error:
        raise _failure(folder, error) from error
    _drop_old(folder.parent, keep, target)
    return target if target.exists() else None


@contextlib.contextmanager
def packing(target: Path) -> Iterator[tarfile.TarFile]:
    """A private archive, which appears under its name only when whole. Raises OSError."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                yield tar
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def add(tar: tarfile.TarFile, path: Path, name: str, hidden: Sequence[str]) -> None:
    """Put one file, link or folder into an archive without the `hidden` texts."""
    facts = tar.gettarinfo(path, arcname=name)
    if facts is None:
        return
    if not facts.isreg():
        tar.addfile(facts)
        return
    with path.open("rb") as lines, tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as clean:
        clean.writelines(secrets.without(hidden, line) for line in lines)
        facts.size, facts.mode = clean.tell(), 0o600
        clean.seek(0)
        tar.addfile(facts, clean)


def _drop_old(log_dir: Path, keep: int, newest: Path) -> None:
    """`newest` is that, whatever a clock that was put back says."""
    archives = [path for path in log_dir.glob("glm53-*.tar.gz") if NAME.fullmatch(path.name.removesuffix(".tar.gz"))]
    for old in sorted(archives, key=lambda path: (path == newest, path.stat().st_mtime, path.name), reverse=True)[keep:]:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()


def tail(log: Path, lines: int) -> list[str]:
    """Last lines of a log, control characters other than tabs replaced; empty where there is none."""
    try:
        return list(follow(log, lines, lambda: False))
    except OSError:
        return []


def follow(log: Path, lines: int, goes_on: Callable[[], bool]) -> Iterator[str]:
    """Last lines of a log, then every line that comes as long as it `goes_on`. Raises OSError."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        is_first, lives, rest = True, True, b""
        while lives:
            # Asked before reading: what a server says last is read too.
            lives = goes_on()
            whole, _, rest = (rest + file.read()).rpartition(b"\n") if lives else (rest + file.read(), b"", b"")
            shown = [CONTROL.sub("?", line) for line in whole.decode("utf-8", "replace").splitlines() if line.strip()]
            yield from shown[-lines:] if is_first else shown
            is_first = False
            if lives:
                time.sleep(FOLLOW_EVERY_S)


def _failure(place: Path, error: OSError) -> Failure:
    return Failure("E_LOG", found=f"{place}: {error.strerror or error}", needed="a LOG_DIR that can be written, with space")
