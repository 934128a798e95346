"""Downloads one pinned revision of a repository of the Hugging Face hub. Runs as a program of its own, so that it can be ended.

`python -m recipe.adapters.hub REPOSITORY REVISION FOLDER`; the token comes through HF_TOKEN. The marker is written last.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe import files

MARKER = ".recipe.json"
TRIES, PAUSE_S = 3, 2.0
# Where trying again is no use.
REFUSALS = {
    401: "the hub wants a valid HF_TOKEN",
    403: "HF_TOKEN gives no access to this repository",
    404: "no such repository or revision",
}


def is_complete(folder: Path, revision: str) -> bool:
    """Whether a download of this revision ended well and every file of it still has its size."""
    told = files.read_json(folder / MARKER)
    if told is None or told.get("revision") != revision or not isinstance(told.get("files"), dict):
        return False
    return bool(told["files"]) and all(_size(folder / name) == size for name, size in told["files"].items())


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def main(argv: list[str]) -> int:
    """Download, compare every file with the hub's own list, fetch again what differs, write the marker. Status 1 with the reason last."""
    repository, revision, place = argv
    try:
        left = _fetch(repository, revision, Path(place))
    except Exception as error:
        left = _explained(error)
    sys.stderr.write(f"{left}\n" if left else "")
    return 1 if left else 0


def _fetch(repository: str, revision: str, folder: Path) -> str:
    """Why it is not complete; empty where it is. Raises what the hub's client raises at the last try, or where trying again is no use."""
    from huggingface_hub import HfApi, constants, snapshot_download

    listed = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings or []
    facts = {one.rfilename: {"bytes": one.size, "sha256": one.lfs and one.lfs.sha256, "git": one.blob_id} for one in listed}
    if not facts:
        return "the hub lists no file"
    left = sorted(facts)
    for tries_left in reversed(range(TRIES)):
        try:
            snapshot_download(repository, revision=revision, local_dir=folder, allow_patterns=[glob.escape(name) for name in left])
        except Exception as error:
            if not tries_left or _status(error) in REFUSALS or getattr(error, "errno", None) == errno.ENOSPC:
                raise
            time.sleep(PAUSE_S)
        left = [name for name in left if not _is_whole(folder / name, facts[name])]
        if not left:
            sizes = {name: told["bytes"] for name, told in facts.items()}
            files.write_json(folder / MARKER, {"repository": repository, "revision": revision, "files": sizes, "digests": facts})
            return ""
        for name in left:
            (folder / name).unlink(missing_ok=True)
        # What comes whole, but wrong or not at all, is asked for by the plain way of transfer next.
        constants.HF_HUB_DISABLE_XET = True
    return f"missing or different from the hub's list: {', '.join(left)}"


def _is_whole(path: Path, facts: Mapping[str, Any]) -> bool:
    """Size and digest: SHA-256 of a large file, Git's object id of a small one."""
    if _size(path) != facts["bytes"]:
        return False
    if facts["sha256"]:
        return files.sha256(path) == facts["sha256"]
    return hashlib.sha1(b"blob %d\0" % facts["bytes"] + path.read_bytes()).hexdigest() == facts["git"]


def _status(error: Exception) -> int:
    return getattr(getattr(error, "response", None), "status_code", 0)


def _explained(error: Exception) -> str:
    status = _status(error)
    why = REFUSALS.get(status) or ("the hub asks to come later" if status == 429 else "the hub or the way to it failed")
    return f"{why}{f' (status {status})' if status else ''}: {' '.join(str(error).split()) or type(error).__name__}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
