"""A prompt chunk of 4096 tokens through one rank's layers on one GPU: slices change no bit, then milliseconds and each kernel's share.

`PYTHONPATH=engine python bench/gpu/prompt.py OUT.json` draws every layer's weights on the GPU; nothing is written to a disk. The
chunk runs behind nothing and behind 28,672 tokens. `chunk_ms` is wall time of `run_prompt`, the last row's norm included, without head and
sampling.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from typing import Any

import torch
from drawn import opened
from result import write
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lockstep.cache import PAGE_TOKENS, Sequence, StateSlots, TokenPool
from lockstep.model.glm import GlmModel

CHUNK, BEHIND, ASKED_MS = 4096, 28672, 165.0
PAGES = (BEHIND + CHUNK) // PAGE_TOKENS


class Prompts:
    """Sequences of one slot each over a pool that holds one long and one short of them."""

    def __init__(self, model: GlmModel) -> None:
        self.model = model
        self.slots = StateSlots(model.config, 2, "cuda", torch.bfloat16)
        model.attach(TokenPool(model.config, 2 * PAGES, "cuda", torch.bfloat16), self.slots)
        draw = torch.Generator().manual_seed(5)
        self.ids: list[int] = torch.randint(0, model.config.vocab_size, (BEHIND + CHUNK,), generator=draw).tolist()

    def begun(self, slot: int) -> Sequence:
        """An empty sequence."""
        self.slots.reset(slot)
        return Sequence(slot, list(range(slot * PAGES, (slot + 1) * PAGES)))

    def run(self, slot: int, count: int, slices: tuple[int, ...]) -> tuple[Tensor, str]:
        """Hidden rows and state behind `count` tokens that run in slices of these sizes, round and round."""
        sequence, found, at, turn = self.begun(slot), [], 0, 0
        while at < count:
            size = min(slices[turn % len(slices)], count - at)
            found.append(self.model.run_prompt(sequence, self.ids[at : at + size], every_row=True).hidden)
            at, turn = at + size, turn + 1
        return torch.cat(found), self.model.state_hash(sequence)


def check(prompts: Prompts) -> dict[str, Any]:
    """Stops the program if slices, a rerun or another slot change a bit, or if a value is not finite."""
    count = 3000
    whole, state = prompts.run(0, count, (CHUNK,))
    if not whole.isfinite().all():
        raise SystemExit("a hidden value is not finite")
    for slot, slices in ((0, (CHUNK,)), (1, (64, 128, 640, 1024)), (1, (2048, 64))):
        found, other = prompts.run(slot, count, slices)
        wrong = (found != whole).any(1).nonzero().flatten()
        if len(wrong) or other != state:
            where = f"{len(wrong)} rows differ, first {wrong[:3].tolist()}; states {state} {other}"
            raise SystemExit(f"slices {slices} in slot {slot}: {where}")
    return {"tokens": count, "rows_compared": 3 * count, "state": state}


def measure(prompts: Prompts, behind: int) -> dict[str, Any]:
    """Median of chunks behind `behind` tokens, and the kernels of one of them."""
    sequence = prompts.begun(0)
    if behind:
        prompts.model.run_prompt(sequence, prompts.ids[:behind])
    ids, times = prompts.ids[behind : behind + CHUNK], []

    def chunk() -> None:
        prompts.model.run_prompt(sequence, ids)
        sequence.length = behind

    for _ in range(4):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        chunk()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) * 1e3)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        chunk()
        torch.cuda.synchronize()
    parts: dict[str, float] = defaultdict(float)
    launches = 0
    for event in seen.key_averages():
        if event.self_device_time_total > 0:
            parts[event.key.split("<")[0][:48]] += event.self_device_time_total / 1e3
            launches += event.count
    kernels = {name: round(ms, 3) for name, ms in sorted(parts.items(), key=lambda pair: -pair[1]) if ms >= 0.1}
    found = {"chunk_ms": round(statistics.median(times[1:]), 2), "gpu_ms": round(sum(parts.values()), 2), "launches": launches}
    return {**found, "tokens_per_s": round(CHUNK / statistics.median(times[1:]) * 1e3), "kernels_ms": kernels}


def main() -> None:
    """Draw, check, time, write."""
    begun = time.monotonic()
    with torch.inference_mode():
        out, model, report = opened(__doc__, "bf16")
        report["asked_ms"] = ASKED_MS
        prompts = Prompts(model)
        report["same_bits"] = check(prompts)
        print(f"checked after {time.monotonic() - begun:.1f} s", report["same_bits"], flush=True)
        for behind in (0, BEHIND):
            report[f"behind_{behind}"] = measure(prompts, behind)
            print(behind, json.dumps(report[f"behind_{behind}"]), flush=True)
            write(out, report)
    print(f"done after {time.monotonic() - begun:.1f} s, {torch.cuda.max_memory_allocated() / 1e9:.1f} GB at most")


if __name__ == "__main__":
    main()
