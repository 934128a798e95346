"""Downloads one pinned revision of a repository of the Hugging Face hub. Runs as a program of its own, so that it can be ended.

`python -m recipe.adapters.hub REPOSITORY REVISION FOLDER`; the token comes through HF_TOKEN. The marker is written last.
"""

from __future__ import annotations

import sys
from pathlib import Path

from recipe import files

MARKER = ".recipe.json"


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
    """Download, check every file's size against the hub's own list, write the marker. Raises what the hub's client raises."""
    from huggingface_hub import HfApi, snapshot_download

    repository, revision, place = argv
    folder = Path(place)
    listed = HfApi().model_info(repository, revision=revision, files_metadata=True).siblings or []
    sizes = {one.rfilename: one.size for one in listed if one.size is not None}
    snapshot_download(repository, revision=revision, local_dir=folder)
    wrong = [name for name, size in sizes.items() if _size(folder / name) != size]
    if wrong or not sizes:
        sys.stderr.write(f"missing or of another size: {', '.join(wrong) or 'the hub lists no file'}\n")
        return 1
    files.write_json(folder / MARKER, {"repository": repository, "revision": revision, "files": sizes})
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
