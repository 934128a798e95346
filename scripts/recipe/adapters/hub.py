"""Downloads one pinned revision of a repository of the Hugging Face hub. Runs as a program of its own, so that it can be ended.

`python -m recipe.adapters.hub REPOSITORY REVISION FOLDER STALL_S`; token, mirror and HF_HUB_OFFLINE come through the environment. The
manifest is fetched once and stays beside the weights; the marker is written last. A transfer that brings nothing for STALL_S seconds is
begun again by the other way of transfer, from what is there.
"""

from __future__ import annotations

import collections
import errno
import fcntl
import glob
import hashlib
import importlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recipe import files
from recipe.adapters import kernel

MANIFEST, MARKER, PARTS = ".recipe-manifest.json", ".recipe.json", ".recipe-parts"
WORKERS = 6
# Small enough that a slow way is not taken for one that brings nothing.
PIECE_BYTES = 256 * 1024
LONG_TO_READ = 1 << 30
TRIES, PAUSE_S, LONGEST_PAUSE_S = 4, 1.0, 300.0
STALLS = 5
TELL_S, TICK_S, RATE_S = 2.0, 0.25, 30.0
PLAIN = "HF_HUB_DISABLE_XET"
# What an earlier self tells the next: how often in a row nothing came.
STALLED = "RECIPE_STALLED"
# Where trying again is no use.
REFUSALS = {
    401: "the hub wants a valid HF_TOKEN",
    403: "HF_TOKEN gives no access to this repository",
    404: "no such repository or revision",
}

Facts = Mapping[str, Mapping[str, Any]]


def manifest(folder: Path, revision: str) -> Facts | None:
    """Bytes and digests of every file of this revision by its name; None where they were never fetched."""
    told = files.read_json(folder / MANIFEST) or {}
    return told["files"] if told.get("revision") == revision and isinstance(told.get("files"), dict) and told["files"] else None


def is_complete(folder: Path, revision: str) -> bool:
    """Whether every file was compared with its digest and has not been written to since."""
    told = files.read_json(folder / MARKER)
    if told is None or told.get("revision") != revision or not isinstance(told.get("files"), dict):
        return False
    return bool(told["files"]) and all(_stamp(folder / name) == stamp for name, stamp in told["files"].items())


def missing_bytes(folder: Path, revision: str) -> int | None:
    """What is still to be fetched; None where nobody knows yet how much there is."""
    facts = manifest(folder, revision)
    return None if facts is None else sum(told["bytes"] for told in facts.values()) - bytes_there(folder, facts)


def _stamp(path: Path) -> list[int] | None:
    """Size and time of the last change."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return [facts.st_size, facts.st_mtime_ns]


def bytes_there(folder: Path, facts: Facts) -> int:
    """Bytes of whole files and of parts; a part counts as far as it is really written."""
    parts = [path.stat() for path in (*_foreign_parts(folder), *(folder / PARTS).rglob("*")) if path.is_file()]
    whole = (min((_stamp(folder / name) or [0])[0], told["bytes"]) for name, told in facts.items())
    return sum(whole) + sum(min(part.st_size, part.st_blocks * 512) for part in parts)


def _foreign_parts(folder: Path) -> Iterator[Path]:
    """Parts of the hub's own client, which it never goes on from."""
    return (folder / ".cache/huggingface/download").rglob("*.incomplete")


def main(argv: list[str]) -> int:
    """Fetch what is missing, compare every file with its digest, fetch again what differs, write the marker. Status 1, the reason last."""
    repository, revision, place, stall_s = argv
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(name, "1")
    try:
        left = _complete(repository, revision, Path(place), float(stall_s))
    except Exception as error:
        left = _explained(error)
    sys.stderr.write(f"{left}\n" if left else "")
    return 1 if left else 0


def _complete(repository: str, revision: str, folder: Path, stall_s: float) -> str:
    """Why it is not complete; empty where it is. Raises what the hub's client raises at the last try, or where trying again is no use."""
    closed = next(_closed(folder), None)
    if closed is not None:
        owner, own = kernel.user(closed.stat().st_uid), kernel.user()
        return f"{closed} belongs to {owner} and {own} may not write there: sudo chown -R {own} {closed} gives it back"
    is_offline = os.environ.get("HF_HUB_OFFLINE") == "1"
    if not is_offline:
        folder.mkdir(parents=True, exist_ok=True)
        _take_turn(folder)
    facts = manifest(folder, revision)
    if facts is None and is_offline:
        return f"OFFLINE=1 fetches nothing and {folder / MANIFEST} is not there: copy the whole folder from a host that has it"
    facts = facts or _list(repository, revision, folder)
    left = _wrong(folder, revision, facts)
    if left and is_offline:
        return f"OFFLINE=1 fetches nothing; missing or different: {', '.join(left)}"
    if left:
        watch = Watch(folder, facts, stall_s)
        watch.start()
        left = _fetch(repository, revision, folder, facts, left, watch)
    if not left:
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        files.write_json(folder / MARKER, {"revision": revision, "files": {name: _stamp(folder / name) for name in facts}})
    return f"missing or different from the hub's list: {', '.join(left)}" if left else ""


def _take_turn(folder: Path) -> None:
    """One program at a time writes there; the next one finds what this one brought. Held until this program ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"another start downloads into {folder}: waiting for it\n")
        fcntl.flock(handle, fcntl.LOCK_EX)


def _closed(folder: Path) -> Iterator[Path]:
    """What has to be written to and cannot be."""
    place = folder
    while not place.exists():
        place = place.parent
    yield from (path for path in (place, *(folder.glob("*"))) if not os.access(path, os.W_OK))


def _list(repository: str, revision: str, folder: Path) -> Facts:
    """Ask the hub for every file's size and digest and keep its answer. Raises ValueError for an empty one."""
    from huggingface_hub import HfApi

    listed = []
    for tries_left in reversed(range(TRIES)):
        try:
            listed = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings or []
            break
        except Exception as error:
            _pause(error, tries_left)
    facts = {one.rfilename: {"bytes": one.size, "sha256": one.lfs and one.lfs.sha256, "git": one.blob_id} for one in listed}
    if not facts:
        raise ValueError("the hub lists no file")
    files.write_json(folder / MANIFEST, {"repository": repository, "revision": revision, "files": facts})
    return facts


def _wrong(folder: Path, revision: str, facts: Facts) -> list[str]:
    """Names of files that are not as listed. One that was compared before and not changed since is not read again."""
    told = files.read_json(folder / MARKER) or {}
    known = told.get("files", {}) if told.get("revision") == revision else {}
    return [name for name in sorted(facts) if _stamp(folder / name) != known.get(name, 0) and not _is_whole(folder / name, facts[name])]


def _fetch(repository: str, revision: str, folder: Path, facts: Facts, left: list[str], watch: Watch) -> list[str]:
    """Names of what does not come right."""
    from huggingface_hub import constants

    # The client loads its parts when they are named, which is no time of the transfer.
    importlib.import_module("huggingface_hub.file_download")
    tries_left = TRIES - 1
    while True:
        for path in (*(folder / name for name in left), *_foreign_parts(folder)):
            path.unlink(missing_ok=True)
        there = bytes_there(folder, facts)
        watch.expects = True
        try:
            _transfer(repository, revision, folder, {name: facts[name]["bytes"] for name in left})
        except Exception as error:
            watch.expects = False
            _pause(error, tries_left)
        watch.expects = False
        left = [name for name in left if not _is_whole(folder / name, facts[name])]
        if not left or not tries_left:
            return left
        # What breaks off is asked for as long as something comes; what comes whole, but wrong, by the plain way of transfer next.
        came_wrong = any((folder / name).exists() for name in left)
        tries_left = TRIES - 1 if bytes_there(folder, facts) > there and not came_wrong else tries_left - 1
        constants.HF_HUB_DISABLE_XET = True


def _transfer(repository: str, revision: str, folder: Path, wanted: Mapping[str, int]) -> None:
    """Fetch files of these sizes, some at a time. Raises the first fault after the others had their turn."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, snapshot_download
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    constants.DOWNLOAD_CHUNK_SIZE = PIECE_BYTES

    def get(name: str) -> None:
        part = folder / PARTS / name
        part.parent.mkdir(parents=True, exist_ok=True)
        begin = (_stamp(part) or [0])[0]
        if begin > wanted[name]:
            part.unlink()
            begin = 0
        with part.open("r+b" if begin else "wb") as file:
            file.seek(begin)
            http_get(
                hf_hub_url(repository, name, revision=revision),
                file,
                resume_size=begin,
                headers=build_hf_headers(),
                expected_size=wanted[name],
            )
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        part.replace(folder / name)

    largest = max(wanted, key=lambda name: wanted[name])
    if not constants.HF_HUB_DISABLE_XET and get_hf_file_metadata(hf_hub_url(repository, largest, revision=revision)).xet_file_data:
        snapshot_download(repository, revision=revision, local_dir=folder, allow_patterns=[glob.escape(name) for name in wanted])
        return
    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(get, wanted):
            pass


def _pause(error: Exception, tries_left: int) -> None:
    """Wait before the next try, as long as the hub says; raise the error where no other try follows."""
    if not tries_left or _status(error) in REFUSALS or _is_full(error) or isinstance(error, ValueError):
        raise error
    asked = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
    time.sleep(min(float(asked) if asked.isdigit() else PAUSE_S * (TRIES - tries_left), LONGEST_PAUSE_S))


def _is_full(error: Exception) -> bool:
    return getattr(error, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error)


def _is_whole(path: Path, facts: Mapping[str, Any]) -> bool:
    """Size and digest: SHA-256 of a large file, Git's object id of a small one."""
    if (_stamp(path) or [-1])[0] != facts["bytes"]:
        return False
    if facts["bytes"] >= LONG_TO_READ:
        sys.stderr.write(f"comparing {path.name} with its digest\n")
    if facts["sha256"]:
        return files.sha256(path) == facts["sha256"]
    return hashlib.sha1(b"blob %d\0" % facts["bytes"] + path.read_bytes()).hexdigest() == facts["git"]


class Watch(threading.Thread):
    """Tells how far it is, and lets this program begin again as a new self where nothing has come for `stall_s` seconds.

    Only while something is expected: neither a pause that the hub asked for nor a long reading of what came is a stall.
    """

    def __init__(self, folder: Path, facts: Facts, stall_s: float) -> None:
        super().__init__(daemon=True)
        self._folder, self._facts, self._stall_s, self.expects = folder, facts, stall_s, False
        self._total = sum(told["bytes"] for told in facts.values())

    def run(self) -> None:
        there = bytes_there(self._folder, self._facts)
        before, told_s, grown_s = there, time.monotonic(), time.monotonic()
        seen = collections.deque([(grown_s, there)])
        while there < self._total:
            time.sleep(TICK_S)
            now_s, now = time.monotonic(), bytes_there(self._folder, self._facts)
            # A file that came wrong is removed: that is progress too.
            grown_s, there = (now_s if now != there or not self.expects else grown_s), now
            seen.append((now_s, now))
            while now_s - seen[0][0] > RATE_S:
                seen.popleft()
            if now_s - told_s >= TELL_S:
                told_s = now_s
                sys.stderr.write(f"{progress(now, self._total, (now - seen[0][1]) / (now_s - seen[0][0]))}\n")
            if now_s - grown_s > self._stall_s:
                self._begin_again(there, there > before)

    def _begin_again(self, there: int, has_grown: bool) -> None:
        stalled = 1 if has_grown else int(os.environ.get(STALLED, 0)) + 1
        way = "xet" if os.environ.get(PLAIN) == "1" else "plain HTTP"
        sys.stderr.write(f"nothing came for {self._stall_s:g} s at {there} of {self._total} bytes; ")
        sys.stderr.write(f"gave up after {STALLS} tries\n" if stalled >= STALLS else f"beginning again by {way}\n")
        sys.stderr.flush()
        if stalled >= STALLS:
            os._exit(1)
        told = {PLAIN: "0" if way == "xet" else "1", STALLED: str(stalled)}
        os.execve(sys.executable, [sys.executable, "-m", "recipe.adapters.hub", *sys.argv[1:]], {**os.environ, **told})


def progress(there: int, total: int, rate: float) -> str:
    """How far it is: gigabytes, bytes a second, and what is left at that rate."""
    left_s = int((total - there) / rate) if rate > 0 else None
    when = "" if left_s is None else f", {left_s // 3600}:{left_s // 60 % 60:02}:{left_s % 60:02} left"
    return f"{there / 1e9:.2f} of {total / 1e9:.2f} GB ({100 * there // max(total, 1)} %), {rate / 1e6:.1f} MB/s{when}"


def _status(error: Exception) -> int:
    return getattr(getattr(error, "response", None), "status_code", 0)


def _explained(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{error.filename} may not be looked at by {kernel.user()}"
    status = _status(error)
    why = REFUSALS.get(status) or ("the hub asks to come later" if status == 429 else "the hub or the way to it failed")
    return f"{why}{f' (status {status})' if status else ''}: {' '.join(str(error).split()) or type(error).__name__}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
