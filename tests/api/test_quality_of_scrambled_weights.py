"""`verify quality` over HTTP against the real engine: the shipped weights pass, the same weights in disorder fail with named checks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from fixtures.fronts import EMBEDDED, ROOT, end_front, start_embedded

CHECKS = ("--only", "json_instruction,needles,thinking_off", "--needle-tokens", "500")


def scrambled(folder: Path) -> Path:
    """A copy of the checkpoint whose bfloat16 matrices have their columns in another order; everything else is as shipped."""
    copy = folder / "scrambled"
    shutil.copytree(EMBEDDED, copy, ignore=shutil.ignore_patterns("make", "drafter", "__pycache__"))
    place, order = copy / "model.safetensors", torch.Generator().manual_seed(3)
    tensors = load_file(place)
    for name, value in tensors.items():
        if value.dtype == torch.bfloat16 and value.dim() == 2:
            tensors[name] = value[:, torch.randperm(value.shape[1], generator=order)].contiguous()
    save_file(tensors, place, metadata={"format": "pt"})
    return copy


def verify(folder: Path, model: Path, *more: str) -> tuple[int, str]:
    """Exit status and table of `verify quality` against a server of its own."""
    front = start_embedded(folder, "--model", str(model), "--context", "1024", "--no-thinking")
    try:
        front.wait_for("/health/ready", 200, limit_s=60)
        command = [sys.executable, "-m", "recipe", "verify", "quality", "--base-url", front.url, *more]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr
    finally:
        end_front(front)


def test_the_shipped_weights_pass(tmp_path: Path) -> None:
    status, table = verify(tmp_path, EMBEDDED, *CHECKS)
    assert status == 0, table
    assert "3 passed, 0 failed" in table


def test_weights_in_disorder_fail_and_the_checks_are_named(tmp_path: Path) -> None:
    status, table = verify(tmp_path, scrambled(tmp_path), "--only", "exact_word,needles", "--needle-tokens", "500")
    assert status == 1, table
    assert "failed: exact word, needles, three depths" in table
