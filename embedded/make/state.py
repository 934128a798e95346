"""Trained tensors in fp32 files small enough to travel, and the trainer's log. Knows no model."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE_BYTES = 15 << 20


def save(folder: Path, stem: str, tensors: dict[str, Tensor]) -> None:
    """Writes `STEM-0.safetensors`, ... of at most `FILE_BYTES` each (one larger tensor gets a file of its own); old ones are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, value in tensors.items():
        size = value.numel() * value.element_size()
        if used + size > FILE_BYTES and parts[-1]:
            parts.append({})
            used = 0
        parts[-1][name] = value.detach().cpu().contiguous().clone()
        used += size
    for old in folder.glob(f"{stem}-*.safetensors"):
        old.unlink()
    for index, part in enumerate(parts):
        save_file(part, folder / f"{stem}-{index}.safetensors")


def load(folder: Path, stem: str, device: str) -> dict[str, Tensor]:
    """All tensors of `save`. Raises FileNotFoundError if there are none."""
    files = sorted(folder.glob(f"{stem}-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no {stem}-*.safetensors; run the stage before this one first")
    return {name: value for file in files for name, value in load_file(file, device=device).items()}


@dataclass(slots=True)
class Log:
    """Lines to the terminal and to `log.jsonl`, each with the seconds since the start."""

    folder: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def write(self, **values: Any) -> None:
        values = {"s": round(self.seconds, 1)} | values
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\n")
        sys.stdout.write(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items()) + "\n")
        sys.stdout.flush()


class Means:
    """Running sums on the device, read rarely so that the device never waits."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.counts[name] = self.counts.get(name, 0) + 1
            self.sums[name] = self.sums.get(name, torch.zeros((), device=value.device)) + value.detach()

    def read(self) -> dict[str, float]:
        out = {name: value.item() / self.counts[name] for name, value in self.sums.items()}
        self.sums, self.counts = {}, {}
        return out
