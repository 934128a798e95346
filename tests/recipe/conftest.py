"""Fixtures of the host side's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.clear()
