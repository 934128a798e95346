"""Which PyTorch an image gets: the base's, where it is recent enough and wanted, else the one of the hash-locked list."""

import re
import tomllib
from pathlib import Path

import pytest

from fixtures.clone_box import ROOT, Box
from patchwork import engine
from recipe import config, pytorch
from recipe.adapters import containers
from recipe.environment import Environment
from recipe.job import Job
from recipe.settings import SETTINGS
from recipe.steps.image import LIST, DockerImage
from recipe.ui import Ui


@pytest.mark.parametrize(
    ("torch", "in_base", "is_of_base"),
    [
        ("base", "2.13.0a0+9186a08b2c.nv26.7.59513937", True),
        ("base", "3.0.0", True),
        ("base", "2.9.1", False),
        ("base", "", False),
        ("lock", "2.13.0", False),
    ],
)
def test_torch_is_left_to_a_base_that_brings_a_recent_one(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, in_base: str, is_of_base: bool
) -> None:
    (box.root / "requirements/engine-cuda.lock").write_bytes((ROOT / "requirements/engine-cuda.lock").read_bytes())
    (box.root / ".state").mkdir()
    monkeypatch.setattr(containers, "ask", lambda reference, *argv: in_base)
    given = box.environment | {"PROFILE": "two-gpu", "TORCH": torch}
    job = Job(config.load(box.root, given), given, Ui(given), "start")
    DockerImage(job, engine.resolve(box.root), Environment("host", job))._list(tmp_path)
    told = (tmp_path / "wheels" / LIST).read_text()
    names = set(re.findall(r"(?m)^([a-z0-9-]+)==", told))
    whole = set(re.findall(r"(?m)^([a-z0-9-]+)==", (ROOT / "requirements/engine-cuda.lock").read_text()))
    of_torch = {name for name in whole if name in ("torch", "triton", "cuda-toolkit") or name.startswith("nvidia-")} - {"nvidia-cuda-nvrtc"}
    assert len(of_torch) > 10
    assert names == (whole - of_torch if is_of_base else whole)
    # Every hash still stands below its own package.
    assert all(block.count("--hash") >= 1 for block in re.split(r"(?m)^(?=[a-z])", told) if "==" in block)


def test_the_least_release_is_what_the_engine_asks_for() -> None:
    asked = tomllib.loads((ROOT / "engine/pyproject.toml").read_text())["project"]["dependencies"]
    least = ".".join(map(str, pytorch.LEAST))
    assert f"torch>={least}" in asked
    assert f"{least} or later" in SETTINGS["TORCH"].help
