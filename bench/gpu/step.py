"""A step from a checkpoint on disk, at the real shapes of one rank of two: drafted equals serial, then milliseconds.

`PYTHONPATH=engine:tests python bench/gpu/step.py OUT.json` writes a synthetic checkpoint of a few layers to a scratch folder, loads it on
the GPU and runs it there as a server would, steps captured. `round.py` measures all layers. `bench/results/step_h200.json` was made when
each launch was the host's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from checkpoints.synthetic import make_synthetic
from fixtures.drafters import RandomDrafter
from fixtures.house import House
from lockstep.cache import Sequence
from lockstep.core.types import EngineRequest, Sampling
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint
from lockstep.weights.dense import coded_weights

VOCABULARY = 2276
WINDOWS = {1: (1,), 4: (4,), 8: (8,), 16: (4, 4, 4, 4), 32: (8, 8, 8, 8)}


def check(house: House) -> dict[str, Any]:
    """Replies alone, together and drafted; stops the program if tokens or states differ."""
    how = Sampling(temperature=0.8, top_k=40, seed=3)
    asked = [EngineRequest(f"r{at}", tuple(range(5 + at, 90 + 3 * at)), how, 10) for at in range(4)]
    serial = {one.id: house.serve([(0, one)])[one.id].bits for one in asked}
    drafter = RandomDrafter(VOCABULARY)
    for what, replies in (
        ("together", house.serve([(0, one) for one in asked])),
        ("drafted together", house.serve([(at, one) for at, one in enumerate(asked)], drafter, 7)),
    ):
        if {name: reply.bits for name, reply in replies.items()} != serial:
            raise SystemExit(f"{what}: tokens or states differ from serial steps")
    return {"requests": len(asked), "tokens_each": 10, "distinct_tokens": len({token for tokens, _ in serial.values() for token in tokens})}


def steps(house: House) -> dict[str, dict[str, float]]:
    """Median milliseconds of one step by rows, and of these how many the GPU worked."""
    model = house.model
    sequences = [Sequence(slot, list(range(slot * 8, slot * 8 + 8))) for slot in range(4)]
    model.attach(house.pool, house.slots)
    for sequence in sequences:
        house.slots.reset(sequence.slot)
        model.run_prompt(sequence, list(range(10, 74)))
    found = {}
    for rows, lengths in WINDOWS.items():
        windows = [(sequence, list(range(100, 100 + length))) for sequence, length in zip(sequences, lengths, strict=False)]

        def step(windows: list[tuple[Sequence, list[int]]] = windows) -> None:
            model.head(model.run_step(windows).hidden)
            model.commit(windows, [0] * len(windows))

        for _ in range(3):
            step()
        times = []
        for _ in range(9):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begun) * 1e3)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            step()
            torch.cuda.synchronize()
        events = seen.key_averages()
        busy = sum(event.self_device_time_total for event in events) / 1e3
        found[str(rows)] = {
            "ms": round(statistics.median(times), 3),
            "gpu_busy_ms": round(busy, 3),
            "launches": sum(event.count for event in events if event.self_device_time_total > 0),
        }
        top = sorted(events, key=lambda event: -event.self_device_time_total)[:8]
        print(
            rows,
            found[str(rows)],
            [(event.key[:40], event.count, round(event.self_device_time_total / 1e3, 3)) for event in top],
            flush=True,
        )
    return found


def main() -> None:
    """Make, load, check, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=6)
    asked = parser.parse_args()
    report: dict[str, Any] = {
        "command": f"python bench/gpu/step.py {asked.out.name}",
        "gpu": torch.cuda.get_device_name(),
        "layers": asked.layers,
    }
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        make_synthetic(Path(folder), "one-of-two", asked.layers, "cuda", 1)
        report["made_s"] = round(time.monotonic() - begun, 1)
        report["checkpoint_gb"] = round(sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors")) / 1e9, 2)
        for dense in ("bf16", "q4"):
            begun = time.monotonic()
            checkpoint = Checkpoint(Path(folder))
            model = GlmModel.load(coded_weights(checkpoint, dense, "cuda"), checkpoint.config, "cuda", torch.bfloat16)
            house = House(model, VOCABULARY, pages=40)
            torch.cuda.synchronize()
            report[dense] = {"loaded_s": round(time.monotonic() - begun, 1), "weights_gb": round(torch.cuda.memory_allocated() / 1e9, 2)}
            print(dense, report, flush=True)
            report[dense]["same_bits"] = check(house)
            report[dense]["step"] = steps(house)
            asked.out.write_text(json.dumps(report, indent=1) + "\n")
            del model, house


if __name__ == "__main__":
    main()
