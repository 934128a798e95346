"""Whether containers get GPUs is asked of a real engine: one without NVIDIA's hook, with it, and with one that fails."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.docker_installation import Daemon
from recipe.adapters import containers

HOOK = "nvidia-container-runtime-hook"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program of the hook's name that does nothing, on the PATH of the engine that is started next."""
    with tempfile.TemporaryDirectory(prefix="hook-") as folder:
        made = Path(folder) / HOOK
        made.write_text("#!/bin/sh\nexit 0\n")
        made.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield made


@pytest.fixture
def hooked(hook: Path) -> Iterator[Daemon]:
    place = Path(tempfile.mkdtemp(prefix="docker-"))
    made = Daemon(place)
    yield made
    made.end()
    subprocess.run(["rm", "-rf", str(place)], check=True)


def test_an_engine_without_the_hook_gives_no_gpu_and_nothing_is_left_of_the_question(daemon: Daemon) -> None:
    before = daemon.docker("ps", "--all", "--quiet")
    problem = containers.gpu_problem(daemon.environment, ["0"])
    assert "device driver" in problem
    assert daemon.docker("images", "--quiet", "glm-gpu-probe") == ""
    assert daemon.docker("ps", "--all", "--quiet") == before


def test_an_engine_whose_hook_works_gives_them_and_one_that_fails_is_quoted(hooked: Daemon, hook: Path) -> None:
    assert containers.gpu_problem(hooked.environment, ["0", "1"]) == ""
    hook.write_text("#!/bin/sh\necho 'initialization error: driver not loaded' >&2\nexit 1\n")
    assert "driver not loaded" in containers.gpu_problem(hooked.environment, ["0", "1"])
