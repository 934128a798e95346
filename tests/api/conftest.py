"""A server for a test, or one for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.fronts import TOKENIZER, Front, end_front, rounds, serving, start_embedded, start_front
from fixtures.waiting import wait_until


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Front]]:
    """Start a server for one test: `serve(script, *flags, ready=True)`."""
    started: list[Front] = []

    def start(script: dict[str, Any], *flags: str, ready: bool = True) -> Front:
        front = start_front(tmp_path, script, *flags)
        started.append(front)
        if ready:
            front.wait_for("/health", 200)
            wait_until(lambda: front.http.get("/health").json()["status"] != "loading")
        return front

    yield start
    for front in started:
        end_front(front)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """One server for the tests of a module: a reply of several rounds, one of them with half a character."""
    snowman = TOKENIZER.encode("☃")
    script = {"rounds": [*rounds("one ", "two five", end=False), snowman[:1], snowman[1:], *rounds(" end.")], "delay_s": 0.002}
    with serving(start_front(tmp_path_factory.mktemp("front"), script)) as started:
        yield started


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """The shipped command with the embedded checkpoint."""
    with serving(start_embedded(tmp_path_factory.mktemp("embedded"), "--context", "2048", "--state-hashes"), 50) as started:
        yield started
