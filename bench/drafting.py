"""What each drafter is worth: tokens a round and decode speed over serial, on held-out prompts of four kinds of text.

`PYTHONPATH=engine:. python bench/drafting.py` writes JSON to bench/results/drafting.json and prints a table. One reply at a time; each
prompt runs under every drafter in turn, so that speeds are compared within one minute. Stops with an error if a reply or a final state
differs from the serial one. Drafters without copies and without a floor also tell what their confidence is worth.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from embedded.make.confidence import Confidence
from embedded.make.data.encoding import Encoder
from embedded.make.data.mixture import sample
from embedded.make.greedy import first_reply

from lockstep.cache import PAGE_TOKENS
from lockstep.config.serving import ServingOptions
from lockstep.core.types import EngineRequest, FinishReason, Sampling
from lockstep.engine import Loaded, load
from lockstep.model.glm import MAX_STEP_ROWS
from lockstep.sched import Scheduler, SchedulerLimits

ROOT = Path(__file__).parents[1]
KINDS = {"prose": ("explanation", "greeting"), "code": ("program",), "count": ("count",), "json": ("json_object", "records")}
SAMPLINGS = {"greedy": Sampling(temperature=0.0), "sampled": Sampling(temperature=0.8, top_k=20, top_p=0.95, seed=7)}
CONTEXT = 4096
# Their drafts are never cut by their own confidence, so that every confidence is seen.
WATCHED = ("mtp", "dflash2 f7")


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply: its token ids and final state, and what it took after the first token."""

    tokens: tuple[int, ...]
    state: str
    rounds: int
    drafted: int
    accepted: int
    decode_s: float


def setups(model: Path) -> dict[str, dict[str, Any]]:
    """Options of each drafter by name. Serial first."""
    block = str(model / "drafter")
    return {
        "none": {},
        "copy": {"drafter": "copy"},
        "mtp": {"drafter": "mtp", "copy_tokens": 0},
        "mtp+copy": {"drafter": "mtp"},
        "dflash2 f7": {"drafter": block, "copy_tokens": 0, "draft_policy": "f7"},
        "dflash2 fnc7:0.3": {"drafter": block, "copy_tokens": 0, "draft_policy": "fnc7:0.3"},
        "dflash2 fnc7:0.3 + copy": {"drafter": block, "draft_policy": "fnc7:0.3"},
        "dflash2 cost7 + copy": {"drafter": block, "draft_policy": "cost7"},
    }


def answer(loaded: Loaded, request: EngineRequest) -> Reply:
    """Serve one request alone."""
    limits = SchedulerLimits(CONTEXT, 1, CONTEXT // PAGE_TOKENS, 256, 1, MAX_STEP_ROWS, loaded.max_drafts)
    scheduler = Scheduler(limits, time.monotonic)
    scheduler.submit(request)
    tokens: list[int] = []
    while True:
        plan = scheduler.plan()
        for event in scheduler.update(plan, loaded.runner.execute(plan)):
            tokens += event.token_ids
            if event.finish is FinishReason.FAILED or event.usage is None:
                continue
            state, usage = loaded.runner.state_hash(request.id), event.usage
            loaded.runner.execute(scheduler.plan())
            # The first token comes from the prompt and belongs to no round.
            return Reply(tuple(tokens), state, usage.rounds - 1, usage.drafted_tokens, usage.accepted_tokens, usage.decode_s)


def prompts(model: Path, per_kind: int, longest: int) -> dict[str, list[tuple[int, ...]]]:
    """Held-out prompts by kind of text."""
    encoder, rng = Encoder.of(model), Random(20)
    found: dict[str, list[tuple[int, ...]]] = {}
    for kind, tasks in KINDS.items():
        drawn = [first_reply(encoder.document(sample(rng, "heldout", tasks[at % len(tasks)])), kind) for at in range(per_kind)]
        found[kind] = [tuple(prompt.ids) for prompt in drawn if len(prompt.ids) + longest <= CONTEXT]
    return found


def summary(replies: list[Reply], serial: list[Reply]) -> dict[str, float]:
    """Totals of one drafter on one kind; `speedup` is the median over prompts of serial decode time over its own."""
    rounds, tokens = sum(one.rounds for one in replies), sum(len(one.tokens) - 1 for one in replies)
    drafted = sum(one.drafted for one in replies)
    return {
        "tokens": tokens,
        "rounds": rounds,
        "tokens_per_round": round(tokens / max(1, rounds), 3),
        "accepted_share": round(sum(one.accepted for one in replies) / max(1, drafted), 3),
        "tokens_per_s": round(tokens / max(1e-9, sum(one.decode_s for one in replies)), 1),
        "speedup": round(statistics.median(old.decode_s / one.decode_s for old, one in zip(serial, replies, strict=True) if one.rounds), 3),
    }


def measure(
    engines: dict[str, Loaded], asked: list[tuple[int, ...]], sampling: Sampling, longest: int, stops: frozenset[int]
) -> dict[str, Any]:
    """Every prompt under every drafter."""
    replies: dict[str, list[Reply]] = {name: [] for name in engines}
    for at, ids in enumerate(asked):
        request = EngineRequest(f"p{at}", ids, replace(sampling, seed=sampling.seed + at), longest, stops)
        for name, loaded in engines.items():
            replies[name].append(answer(loaded, request))
            wanted, got = replies["none"][-1], replies[name][-1]
            if (got.tokens, got.state) != (wanted.tokens, wanted.state):
                raise SystemExit(f"{name}: prompt {at} has other tokens or another state than serial; exactness is broken")
    return {name: summary(own, replies["none"]) for name, own in replies.items()}


def means(results: dict[str, Any], sampling: str) -> dict[str, float]:
    """Tokens per round of each drafter, the mean over the kinds of text."""
    kinds = [figures for name, figures in results.items() if name.endswith(f" {sampling}")]
    return {name: round(statistics.mean(figures[name]["tokens_per_round"] for figures in kinds), 3) for name in kinds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "embedded")
    parser.add_argument("--per-kind", type=int, default=8)
    parser.add_argument("--longest", type=int, default=160)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "drafting.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    options = ServingOptions(asked.model, context=CONTEXT, parallel=1)
    engines = {name: load(replace(options, **fields), lambda *_: None) for name, fields in setups(asked.model).items()}
    stops = frozenset(engines["none"].config.text.eos_token_ids)
    watches = {name: Confidence() for name in WATCHED}
    for name, watch in watches.items():
        watch.watch(engines[name].runner._drafter)
    results: dict[str, Any] = {}
    confidence: dict[str, Any] = {}
    for sampling in SAMPLINGS:
        for kind, ids in prompts(asked.model, asked.per_kind, asked.longest).items():
            figures = results[f"{kind} {sampling}"] = measure(engines, ids, SAMPLINGS[sampling], asked.longest, stops)
            for name, row in figures.items():
                print(f"{kind:6} {sampling:8} {name:24} {row['tokens_per_round']:6.2f} tokens/round {row['speedup']:6.2f} x", flush=True)
        confidence[sampling] = {name: watch.taken() for name, watch in watches.items()}
        print(json.dumps({sampling: {**means(results, sampling), "confidence": confidence[sampling]}}), flush=True)
    report = {
        "model_digest": engines["none"].digest,
        "device": options.device,
        "machine": platform.machine(),
        "torch": torch.__version__,
        "prompts_per_kind": asked.per_kind,
        "longest_reply": asked.longest,
        "samplings": {name: asdict(sampling) for name, sampling in SAMPLINGS.items()},
        "mean_tokens_per_round": {sampling: means(results, sampling) for sampling in SAMPLINGS},
        "confidence": confidence,
        "results": results,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
