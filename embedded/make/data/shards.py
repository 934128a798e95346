"""Shards of packed rows: written by worker processes, read by the trainer. Plain `.npy` files and one `shards.json`.

A bucket holds rows of one length. Files of bucket B and worker W: `B-W.ids.npy` uint16 [rows, length], `B-W.marks.npy` uint8
[rows, length], `B-W.places.npy` int32 [pictures, 2] (row, position of the first of 16 placeholder tokens), `B-W.frames.npy`
uint8 [frames, 112, 56] packed palette indices, see `drawing.pack`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
from embedded.make.data.conversation import FRAME_PIXELS
from embedded.make.data.drawing import pack
from embedded.make.data.encoding import Encoder
from embedded.make.data.mixture import long_sample, sample
from embedded.make.data.packing import Packer, Row


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to write. `tokens` counts row positions over all workers and buckets; `long_share` of them go to the long bucket."""

    checkpoint: str
    out: str
    tokens: int
    workers: int
    seed: int
    length: int = 1024
    long_length: int = 8192
    long_share: float = 0.12
    align: int = 64


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows of one length of all workers, shapes as in the files; `places` indexes into this bucket's `ids` and `frames`."""

    ids: np.ndarray
    marks: np.ndarray
    places: np.ndarray
    frames: np.ndarray


def _save(plan: Plan, bucket: str, worker: int, rows: list[Row]) -> None:
    stem = Path(plan.out) / f"{bucket}-{worker:02d}"
    places: list[tuple[int, int, int, int]] = []
    frames: list[np.ndarray] = []
    for index, row in enumerate(rows):
        for place, shown in row.pictures:
            places.append((index, place, len(frames), len(frames) + len(shown) - 1))
            frames.extend(shown)
    np.save(f"{stem}.ids.npy", np.stack([row.ids for row in rows]))
    np.save(f"{stem}.marks.npy", np.stack([row.marks for row in rows]))
    np.save(f"{stem}.places.npy", np.array(places, np.int32).reshape(-1, 4))
    np.save(f"{stem}.frames.npy", pack(np.array(frames, np.uint8).reshape(-1, FRAME_PIXELS, FRAME_PIXELS)))


def write_worker(plan: Plan, worker: int) -> dict[str, int]:
    """Writes one worker's share of both buckets; returns samples per task."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = Encoder.of(Path(plan.checkpoint))
    pad = encoder.special("<|endoftext|>")
    rng = Random(f"{plan.seed}/{worker}")
    tasks: Counter[str] = Counter()
    for bucket, length, share in (("short", plan.length, 1 - plan.long_share), ("long", plan.long_length, plan.long_share)):
        wanted = round(plan.tokens * share / plan.workers / length)
        packer = Packer(length, plan.align, pad)
        rows: list[Row] = []
        while len(rows) + len(packer.open) < wanted + 1 and wanted:
            conversation = sample(rng, "train") if bucket == "short" else long_sample(rng, "train", length)
            tasks[conversation.task] += 1
            rows += packer.add(encoder.document(conversation))
        rows += packer.flush()
        rng.shuffle(rows)
        if wanted:
            _save(plan, bucket, worker, rows[:wanted])
    return dict(tasks)


def write(plan: Plan) -> dict[str, float | int | dict[str, int]]:
    """Writes all shards with `plan.workers` processes; returns and stores what was written."""
    Path(plan.out).mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if plan.workers == 1:
        counts = [write_worker(plan, 0)]
    else:
        with multiprocessing.get_context("spawn").Pool(plan.workers) as pool:
            counts = pool.starmap(write_worker, [(plan, worker) for worker in range(plan.workers)])
    tasks: Counter[str] = Counter()
    for count in counts:
        tasks.update(count)
    seconds = time.monotonic() - began
    report = {"seconds": round(seconds, 1), "tokens_per_s": round(plan.tokens / seconds), "samples": dict(tasks)}
    (Path(plan.out) / "shards.json").write_text(json.dumps({"plan": asdict(plan), **report}, indent=1))
    return report


def read(folder: Path, bucket: str) -> Bucket:
    """All shards of one bucket joined. Raises FileNotFoundError if the folder holds none."""
    stems = sorted(str(path).removesuffix(".ids.npy") for path in folder.glob(f"{bucket}-*.ids.npy"))
    if not stems:
        raise FileNotFoundError(f"{folder} holds no shard of bucket {bucket}; write some with python -m embedded.make.data")
    ids = [np.load(f"{stem}.ids.npy") for stem in stems]
    places = [np.load(f"{stem}.places.npy") for stem in stems]
    frames = [np.load(f"{stem}.frames.npy") for stem in stems]
    first_rows, first_frames = (np.cumsum([0, *(len(part) for part in parts[:-1])]) for parts in (ids, frames))
    shifted = [part + np.array([row, 0, frame, frame], np.int32) for part, row, frame in zip(places, first_rows, first_frames, strict=True)]
    return Bucket(
        np.concatenate(ids),
        np.concatenate([np.load(f"{stem}.marks.npy") for stem in stems]),
        np.concatenate(shifted).astype(np.int32),
        np.concatenate(frames),
    )
