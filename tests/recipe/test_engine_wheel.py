"""The engine's wheel is the patched tree, whole, and the same bytes each time it is built."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from patchwork import listing, patchset, worktree

ROOT = Path(__file__).parents[2]


def build(source: Path, place: Path, umask: int) -> Path:
    """Build as the recipe does: pip, no network, the build tool of the environment it runs in."""
    argv = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        str(place),
        str(source),
    ]
    subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL, umask=umask)
    return next(place.glob("*.whl"))


@pytest.fixture(scope="module")
def pinned() -> patchset.Pin:
    return worktree.pinned(ROOT, listing.read(ROOT / listing.FOLDER))


def test_two_builds_are_the_same_bytes_and_hold_every_file_of_the_tree(pinned: patchset.Pin, tmp_path: Path):
    wheels = []
    for name, umask in (("one", 0o022), ("two", 0o077)):
        patchset.export(pinned, tmp_path / name / "source")
        wheels.append(build(tmp_path / name / "source", tmp_path / name / "wheel", umask))
    assert len({hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}) == 1
    source = tmp_path / "one" / "source"
    tree = {str(path.relative_to(source)) for path in (source / "lockstep").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = {name for name in wheel.namelist() if name.startswith("lockstep/")}
        entries = wheel.read("lockstep-0.1.0.dist-info/entry_points.txt").decode()
    assert names == tree
    assert "lockstep = lockstep.cli:main" in entries
