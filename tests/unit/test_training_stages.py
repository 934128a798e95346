"""The training commands of embedded/README.md, run for one step on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from embedded.make import state
from embedded.make.stored import stored_parts

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "embedded"
SMALL = "--minutes 0.001 --tokens 256 --length 128 --long-length 256 --workers 1 --first-tokens 4000 --round-tokens 4000 --eval 0".split()  # noqa: SIM905


def make(module: str, *words: str) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'engine'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"embedded.make.{module}", *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def train(stage: str, work: Path, out: Path, scratch: Path) -> None:
    make("train", "--stage", stage, "--work", str(work), "--out", str(out), "--scratch", str(scratch), "--device", "cpu", "--eager", *SMALL)


def test_the_first_stage_leaves_a_whole_model_for_the_next(tmp_path: Path) -> None:
    train("main", tmp_path / "a", tmp_path / "a", tmp_path / "shards")
    weights = state.load(tmp_path / "a", "model", "cpu")
    assert sum(value.numel() for value in weights.values()) > 10_000_000
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


def test_a_polished_checkpoint_is_exported_with_its_experts_and_drafter_unchanged(tmp_path: Path) -> None:
    train("polish", EMBEDDED, tmp_path / "b", tmp_path / "shards")
    make("export", "--work", str(tmp_path / "b"), "--text", str(EMBEDDED), "--out", str(tmp_path / "c"))
    old, polished = (json.loads((place / "manifest.json").read_text())["files"] for place in (EMBEDDED, tmp_path / "c"))
    assert {name for name in old if old[name]["sha256"] != polished[name]["sha256"]} == {"model.safetensors"}
    (rest, coded), (new_rest, new_coded) = stored_parts(EMBEDDED), stored_parts(tmp_path / "c")
    assert all(torch.equal(coded[name], new_coded[name]) for name in coded)
    assert any(not torch.equal(rest[name], new_rest[name]) for name in rest)
