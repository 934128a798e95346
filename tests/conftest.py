"""Tests that need hardware or a daemon are skipped, with the reason, where it is missing."""

from __future__ import annotations

import shutil
import subprocess

import pytest

DOCKER_ANSWER_S = 10


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


def _has_docker() -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=DOCKER_ANSWER_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


NEEDS = {
    "gpu": ("needs one CUDA device", lambda: _cuda_devices() >= 1),
    "gpu2": ("needs two CUDA devices of one host", lambda: _cuda_devices() >= 2),
    "docker": ("needs a Docker daemon that answers", _has_docker),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Look for each need only where a collected test has it."""
    for name, (reason, is_met) in NEEDS.items():
        needing = [item for item in items if item.get_closest_marker(name)]
        if needing and not is_met():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason=reason))
