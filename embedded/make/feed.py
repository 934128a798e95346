"""Batches for the trainer: shards are written by background processes while training runs, the newest round lies on the device.

Knows shards and batches, no model. The generator is fast enough that nearly every row is seen only a few times.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from embedded.make.batch import Batch, of_rows
from embedded.make.data import shards
from embedded.make.data.pixels import unpack
from torch import Tensor

ALIGN = 4


@dataclass(slots=True)
class Rows:
    """One bucket of a round on the device, in an order drawn anew at each pass."""

    ids: Tensor
    marks: Tensor
    frames: Tensor
    places: np.ndarray
    first: np.ndarray
    order: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, bucket: shards.Bucket, device: str) -> Rows:
        places = bucket.places[np.argsort(bucket.places[:, 0], kind="stable")]
        first = np.searchsorted(places[:, 0], np.arange(len(bucket.ids) + 1))
        ids, marks, frames = (torch.from_numpy(t).to(device) for t in (bucket.ids.astype(np.int32), bucket.marks, bucket.frames))
        return cls(ids, marks, frames, places, first)

    def batch(self, count: int, rng: np.random.Generator) -> Batch:
        """`count` rows not given yet in this pass; a new pass begins when too few are left."""
        if len(self.order) < count:
            self.order = rng.permutation(len(self.ids)).tolist()
        rows = [self.order.pop() for _ in range(min(count, len(self.order)))]
        index = torch.tensor(rows, device=self.ids.device)
        shown = [(slot, entry) for slot, row in enumerate(rows) for entry in self.places[self.first[row] : self.first[row + 1]]]
        ids, marks = self.ids[index], self.marks[index]
        if not shown:
            return of_rows(ids, marks)
        where = torch.tensor([slot * ids.shape[1] + int(entry[1]) for slot, entry in shown], device=ids.device)
        pair = torch.tensor([[int(entry[2]), int(entry[3])] for _, entry in shown], device=ids.device)
        return of_rows(ids, marks, unpack(self.frames[pair]), where)


@dataclass(slots=True)
class Feed:
    """`tokens` per batch; every `1 / long_share`-th batch comes from the long bucket. Rounds go to `folder`."""

    folder: Path
    checkpoint: Path
    device: str
    seed: int
    tokens: int
    length: int = 1024
    long_length: int = 8192
    workers: int = 1
    round_tokens: int = 2_000_000
    long_share: float = 0.12
    rounds: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _writer: subprocess.Popen[bytes] | None = None
    _loader: Thread | None = None
    _next: dict[str, Rows] = field(default_factory=dict)
    _rows: dict[str, Rows] = field(default_factory=dict)

    def _command(self, out: Path, tokens: int) -> list[str]:
        values = {"out": out, "checkpoint": self.checkpoint, "tokens": tokens, "workers": self.workers, "seed": self.seed + self.rounds}
        values |= {"length": self.length, "long-length": self.long_length, "long-share": self.long_share, "align": ALIGN}
        return [sys.executable, "-m", "embedded.make.data", *(f"--{name}={value}" for name, value in values.items())]

    def start(self, first_tokens: int) -> None:
        """Writes the first round and waits for it, then starts the second."""
        subprocess.run(self._command(self.folder / "round-0", first_tokens), check=True)
        self._load(self.folder / "round-0")
        self._rows, self._next = self._next, {}
        self._write()

    def _write(self) -> None:
        self.rounds += 1
        self._writer = subprocess.Popen(self._command(self.folder / f"round-{self.rounds}", self.round_tokens), stdout=subprocess.DEVNULL)

    def _load(self, folder: Path) -> None:
        loaded = {bucket: Rows.of(shards.read(folder, bucket), self.device) for bucket in ("short", "long")}
        for file in folder.iterdir():
            file.unlink()
        self._next = loaded

    def _turn(self) -> None:
        """Takes a finished round into use, one step of that at a time."""
        if self._next and self._loader is not None and not self._loader.is_alive():
            self._rows, self._next, self._loader = self._next, {}, None
            self._write()
        elif self._writer is not None and self._writer.poll() == 0 and self._loader is None:
            self._loader = Thread(target=self._load, args=(self.folder / f"round-{self.rounds}",), daemon=True)
            self._loader.start()

    def batch(self, is_long: bool) -> Batch:
        """A batch of `tokens` tokens."""
        self._turn()
        bucket, length = ("long", self.long_length) if is_long else ("short", self.length)
        return self._rows[bucket].batch(max(1, self.tokens // length), self.rng)

    def stop(self) -> None:
        """Ends the background process."""
        if self._writer is not None:
            self._writer.kill()
            self._writer.wait()
