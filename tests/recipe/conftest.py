"""Fixtures of the host side's tests."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.clear()


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A real filesystem of one MiB, or as the parameter says."""
    place = tmp_path / "small"
    place.mkdir()
    options = getattr(request, "param", "size=1m")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False).returncode != 0:
        pytest.skip("no filesystem can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
