"""What holds for every test: what it needs is there or it is skipped with the reason, and neither order nor a busy machine decides it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

# Time is bounded where a test is about time; elsewhere a machine that is busy may take as long as it likes.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

DOCKER_PACKAGES = {"docker.io": "dockerd", "mmdebstrap": "mmdebstrap"}
DEBIAN = Path(__file__).parents[1] / "scripts/debian.sh"


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


def _has_docker() -> bool:
    """Whether tests may start a daemon of their own."""
    return os.geteuid() == 0 and _has(DOCKER_PACKAGES)


def _has(packages: dict[str, str]) -> bool:
    """Whether the program of each of Debian's packages is there; what is missing is installed where root may."""
    missing = [package for package, program in packages.items() if shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    return not missing or subprocess.run(["bash", DEBIAN, *missing], capture_output=True, check=False).returncode == 0


COMPILER = {"g++": "g++"}
PROMETHEUS = {"prometheus": "prometheus"}
BROWSER = {"chromium": "chromium", "chromium-driver": "chromedriver"}
NEEDS = {
    "compiler": ("needs Debian's g++", lambda: _has(COMPILER)),
    "prometheus": ("needs Debian's prometheus", lambda: _has(PROMETHEUS)),
    "browser": ("needs Debian's chromium and chromium-driver", lambda: _has(BROWSER)),
    "gpu": ("needs one CUDA device", lambda: _cuda_devices() >= 1),
    "gpu2": ("needs two CUDA devices of one host", lambda: _cuda_devices() >= 2),
    "docker": ("needs root and Debian's docker.io and mmdebstrap", _has_docker),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Look for each need only where a collected test has it."""
    for name, (reason, is_met) in NEEDS.items():
        needing = [item for item in items if item.get_closest_marker(name)]
        if needing and not is_met():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws without a seed does not depend on the tests before it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
