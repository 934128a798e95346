"""A base image that brings PyTorch: the engine runs on it and brings everything else itself."""

import json
from pathlib import Path

import pytest

from fixtures.docker_installation import Installation

LOOK = (
    "import json, numpy, sys, torch;"
    "print(json.dumps({one.__name__: one.__file__ for one in (numpy, torch)} | {'user': sys.flags.no_user_site}))"
)


def wheels(installation: Installation) -> list[Path]:
    """What was fetched for each base so far, the newest last."""
    return sorted((installation.home / ".cache/glm-5.3-flash/wheels").iterdir(), key=lambda path: path.stat().st_mtime)


@pytest.fixture
def base(live: Installation) -> str:
    """The tests' base with the PyTorch of the list installed into it."""
    install = ["python3", "-m", "pip", "install", "--break-system-packages", "--no-index", "--find-links", "/wheels", "torch"]
    live.daemon.docker("run", "--name", "torch", "--network", "none", "--volume", f"{wheels(live)[-1]}:/wheels:ro", live.base, *install)
    made = live.daemon.docker("commit", "torch")
    live.daemon.docker("rm", "torch")
    return made


def test_the_engine_runs_on_the_pytorch_of_its_base(live: Installation, base: str) -> None:
    live.must("restart", BASE_IMAGE=base, TORCH="base")
    names = {path.name.partition("-")[0] for path in wheels(live)[-1].iterdir()}
    assert "numpy" in names
    assert "torch" not in names
    assert live.ask() == 200
    seen = json.loads(live.inside(LOOK))
    assert seen["torch"].startswith("/usr/local/lib/python3")
    assert seen["numpy"].startswith("/opt/engine/")
    assert seen["user"] == 1
