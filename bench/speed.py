"""Speed on this machine's CPU, one compute thread: drafted against serial, four together against one, serial against transformers, the API.

`PYTHONPATH=engine:tests:. python bench/speed.py` writes bench/results/speed.json and prints each ratio beside its target. Both sides of a
ratio run in turn, prompt by prompt, and the median of the pairs counts. Drafted replies and final states must equal the serial ones, else
it stops with an error. Needs transformers, which the engine itself does not. Other programs on the machine blur the figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from drafting import CONTEXT, KINDS, ROOT, SAMPLINGS, Reply, prompts
from safetensors.torch import save_file
from torch import Tensor

from lockstep.cache import PAGE_TOKENS
from lockstep.config.serving import ServingOptions
from lockstep.core.types import EngineRequest, Sampling, Usage
from lockstep.engine import Loaded, load
from lockstep.kernels.exl3 import TILE, decode_outer
from lockstep.model.glm import MAX_STEP_ROWS
from lockstep.sched import Scheduler, SchedulerLimits
from lockstep.weights import Checkpoint
from lockstep.weights.exl3 import read_exl3

Clock = Callable[[], float]
TOGETHER = 4
# Pairs with the reference a prompt, by each clock.
REPEATS = 2
# Everything but the API runs in this one thread.
CLOCKS: dict[str, Clock] = {"wall": time.monotonic, "cpu": time.thread_time}
TARGETS = {"drafted json": 1.5, "drafted count": 1.5, "drafted code": 1.5, "drafted prose": 1.2, "four together": 2.0, "transformers": 3.0}
LIMITS_MS = {"first_token_added_ms": 1.0, "front_cpu_ms_per_round_of_one_stream": 0.2}


def serve(loaded: Loaded, requests: list[EngineRequest], clock: Clock) -> tuple[list[Reply], float]:
    """Serve requests that arrive at once. Returns replies and the seconds from the last first token to the first end."""
    pages = len(requests) * CONTEXT // PAGE_TOKENS
    scheduler = Scheduler(SchedulerLimits(CONTEXT, len(requests), pages, 4096, 8, MAX_STEP_ROWS, loaded.max_drafts), clock)
    for request in requests:
        scheduler.submit(request)
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    ended: dict[str, tuple[str, Usage]] = {}
    began = clock()
    while len(ended) < len(requests):
        plan = scheduler.plan()
        for event in scheduler.update(plan, loaded.runner.execute(plan)):
            if not all(tokens.values()):
                began = clock()
            tokens[event.request_id] += event.token_ids
            if event.usage is not None:
                ended[event.request_id] = loaded.runner.state_hash(event.request_id), event.usage
    seconds = clock() - began
    loaded.runner.execute(scheduler.plan())
    return [reply(tuple(tokens[one.id]), *ended[one.id]) for one in requests], seconds


def reply(tokens: tuple[int, ...], state: str, usage: Usage) -> Reply:
    """The first token comes from the prompt and belongs to no round."""
    return Reply(tokens, state, usage.rounds - 1, usage.drafted_tokens, usage.accepted_tokens, usage.decode_s)


def drafted(
    serial: Loaded, drafting: Loaded, asked: list[tuple[int, ...]], sampling: Sampling, longest: int, clock: Clock
) -> dict[str, Any]:
    """Serial decode time over drafted, prompt by prompt."""
    stops = frozenset(serial.config.text.eos_token_ids)
    ratios, rounds, count = [], 0, 0
    for at, ids in enumerate(asked):
        request = EngineRequest(f"d{at}", ids, replace(sampling, seed=sampling.seed + at), longest, stops)
        (slow,), _ = serve(serial, [request], clock)
        (fast,), _ = serve(drafting, [request], clock)
        if (slow.tokens, slow.state) != (fast.tokens, fast.state):
            raise SystemExit(f"prompt {at}: drafted tokens or state differ from serial ones; exactness is broken")
        if slow.rounds:
            ratios.append(slow.decode_s / fast.decode_s)
            rounds, count = rounds + fast.rounds, count + len(fast.tokens) - 1
    return {"ratio": median(ratios), "pairs": len(ratios), "tokens_per_round": round(count / max(1, rounds), 3)}


def together(loaded: Loaded, asked: list[tuple[int, ...]], longest: int, clock: Clock) -> dict[str, Any]:
    """Tokens a second of four replies at once over those of one, all of the same length."""
    ratios = []
    for at, ids in enumerate(asked):
        requests = [
            EngineRequest(f"t{at}-{copy}", ids[: len(ids) - copy] or ids, Sampling(temperature=0.0), longest, ignore_eos=True)
            for copy in range(TOGETHER)
        ]
        _, alone = serve(loaded, requests[:1], clock)
        replies, four = serve(loaded, requests, clock)
        ratios.append(sum(len(one.tokens) - 1 for one in replies) / four * alone / (longest - 1))
    return {"ratio": median(ratios), "pairs": len(ratios)}


class Stamps:
    """A streamer that notes when each token came; the first call is the prompt."""

    def __init__(self, clock: Clock) -> None:
        self.at: list[float] = []
        self._clock = clock

    def put(self, value: Tensor) -> None:
        self.at.append(self._clock())

    def end(self) -> None:
        pass


def against_reference(serial: Loaded, reference: Any, asked: list[tuple[int, ...]], longest: int, clock: Clock) -> dict[str, Any]:
    """Milliseconds a token of transformers' `generate` over ours, after the first token, prompt by prompt."""
    pairs, equal = [], 0
    for at, ids in enumerate(asked):
        request = EngineRequest(f"r{at}", ids, Sampling(temperature=0.0), longest, ignore_eos=True)
        (own,), _ = serve(serial, [request], clock)
        stamps, given = Stamps(clock), torch.tensor([ids])
        with torch.inference_mode():
            found = reference.generate(
                input_ids=given, attention_mask=torch.ones_like(given), max_new_tokens=longest, min_new_tokens=longest,
                do_sample=False, streamer=stamps,
            )  # fmt: skip
        theirs = stamps.at[-1] - stamps.at[1]
        pairs.append((1e3 * theirs / (longest - 1), 1e3 * own.decode_s / (longest - 1)))
        equal += found[0, len(ids) :].tolist() == list(own.tokens)
    return {
        "ratio": median([theirs / ours for theirs, ours in pairs]),
        "pairs": len(pairs),
        "reference_ms": median([theirs for theirs, _ in pairs]),
        "own_ms": median([ours for _, ours in pairs]),
        "equal_replies": equal,
    }


def load_reference(model: Path, folder: Path) -> Any:
    """The checkpoint in transformers, fp32, its EXL3 matrices expanded."""
    source = Checkpoint(model).source
    tensors: dict[str, Tensor] = {}
    for name in source.names():
        prefix, leaf = name.rsplit(".", 1)
        if leaf == "trellis":
            blocks = source.get(name).shape
            matrix = read_exl3(source, prefix, blocks[0] * TILE, blocks[1] * TILE)
            tensors[f"{prefix}.weight"] = decode_outer(matrix.trellis, matrix.suh, matrix.svh, matrix.codebook).T.float().contiguous()
        elif leaf not in ("suh", "svh", "mcg", "mul1"):
            tensors[name] = source.get(name).float()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "generation_config.json"):
        shutil.copy(model / name, folder / name)
    transformers.logging.set_verbosity_error()
    return transformers.Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def api() -> dict[str, float]:
    """What the front process adds, see `server_overhead.py`."""
    done = subprocess.run([sys.executable, str(Path(__file__).parent / "server_overhead.py")], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def engines(model: Path) -> tuple[Loaded, Loaded]:
    """A serial engine and one that drafts as a start without further words does."""
    options = ServingOptions(model, context=CONTEXT, parallel=TOGETHER, kept_gib=0)
    quiet: Callable[[str, float], None] = lambda *_: None  # noqa: E731
    return load(options, quiet), load(replace(options, drafter=str(model / "drafter")), quiet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "embedded")
    parser.add_argument("--per-kind", type=int, default=6)
    parser.add_argument("--longest", type=int, default=96)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu leaves out what other programs take")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "speed.json")
    given = parser.parse_args()
    clock = CLOCKS[given.clock]
    torch.set_num_threads(1)
    serial, drafting = engines(given.model)
    asked = prompts(given.model, given.per_kind, given.longest)
    prose = asked["prose"]
    serve(serial, [EngineRequest("warm", prose[0], Sampling(temperature=0.0), 8)], clock)
    serve(drafting, [EngineRequest("warm", prose[0], Sampling(temperature=0.0), 8)], clock)
    results: dict[str, Any] = {}
    for kind in KINDS:
        results[f"drafted {kind}"] = drafted(serial, drafting, asked[kind], SAMPLINGS["greedy"], given.longest, clock)
        results[f"drafted {kind} sampled"] = drafted(serial, drafting, asked[kind], SAMPLINGS["sampled"], given.longest, clock)
    results["four together"] = together(serial, prose, given.longest, clock)
    results["four together drafted"] = together(drafting, prose, given.longest, clock)
    with tempfile.TemporaryDirectory() as folder:
        reference = load_reference(given.model, Path(folder))
        for name, own in CLOCKS.items():
            label = "transformers" if own is clock else f"transformers, {name} clock"
            results[label] = against_reference(serial, reference, prose * REPEATS, given.longest, own)
    results["api"] = api()
    for name, row in results.items():
        if "ratio" in row:
            print(f"{name:24} {row['ratio']:6.2f} x   needed {TARGETS.get(name, '-')}")
    for name, limit in LIMITS_MS.items():
        print(f"{name:40} {results['api'][name]:.3f} ms   allowed {limit}")
    report = {
        "model_digest": serial.digest, "machine": platform.machine(), "torch": torch.__version__, "transformers": transformers.__version__,
        "prompts_per_kind": given.per_kind, "longest_reply": given.longest, "clock": given.clock, "targets": TARGETS, "results": results,
    }  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
