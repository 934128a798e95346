"""Rounds of one rank of two, all layers, on one GPU: drafted equals serial, captured equals plain, then milliseconds and where they go.

`PYTHONPATH=engine:tests python bench/gpu/round.py OUT.json` draws every layer's weights on the GPU, large dense matrices in q4; nothing
is written to a disk. A round is what a serving step does but for sampling and drafting: tell the plan, run the captured step with its head,
commit all rows but one. Tokens are drawn anew for each round, so routing is too. `round_ms` is wall time, `graph_ms` the replay's alone,
`launched_ms` wall time where each launch is the host's.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import torch
from drawn import opened
from result import write
from torch.profiler import ProfilerActivity, profile

from fixtures.drafters import RandomDrafter
from fixtures.stepped_engine import SteppedEngine
from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.core.types import EngineRequest, Sampling
from lockstep.kernels.router import choose
from lockstep.model.glm import GlmModel, Window

WINDOWS = {1: (1,), 2: (2,), 4: (4,), 8: (8,), 16: (4, 4, 4, 4), 32: (8, 8, 8, 8)}
FLOORS_MS = {1: 2.0, 4: 5.4, 8: 9.2, 16: 15.7, 32: 25.0}
PROMPT, PAGES, ROUNDS = 64, 8, 9
REPLY = 10


class Streams:
    """Four sequences behind prompts of their own."""

    def __init__(self, model: GlmModel, seed: int = 5) -> None:
        self.model = model
        self._draw = torch.Generator().manual_seed(seed)
        slots = StateSlots(model.config, 4, "cuda", torch.bfloat16)
        model.attach(TokenPool(model.config, 4 * PAGES, "cuda", torch.bfloat16), slots)
        assert model.rounds is not None
        self.rounds = model.rounds
        self.sequences = [Sequence(slot, list(range(PAGES * slot, PAGES * slot + PAGES))) for slot in range(4)]
        for sequence in self.sequences:
            slots.reset(sequence.slot)
            model.run_prompt(sequence, self.tokens(PROMPT))

    def tokens(self, count: int) -> list[int]:
        """Random ids."""
        return torch.randint(0, self.model.config.vocab_size, (count,), generator=self._draw).tolist()

    def windows(self, rows: int) -> list[Window]:
        """As many rows of random tokens as asked for."""
        return [(one, self.tokens(count)) for one, count in zip(self.sequences, WINDOWS[rows], strict=False)]

    def timed(self, rows: int) -> float:
        """Milliseconds of one round of random tokens, as a clock on the wall sees it."""
        windows = self.windows(rows)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        self.round(windows)
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) * 1e3

    def round(self, windows: list[Window]) -> None:
        """One round that is taken back to where the prompts end: every time is one of the same length."""
        self.model.run_step(windows)
        self.model.commit(windows, [max(1, len(ids) - 1) for _, ids in windows])
        for sequence in self.sequences:
            sequence.length = PROMPT


def same_replies(model: GlmModel) -> dict[str, Any]:
    """Serves requests alone, together and drafted; stops the program if tokens or states differ."""
    vocabulary = model.config.vocab_size
    stepped, how = SteppedEngine(model, vocabulary), Sampling(temperature=0.8, top_k=40, seed=3)
    asked = [EngineRequest(f"r{at}", tuple(range(5 + at, 90 + 3 * at)), how, REPLY) for at in range(4)]
    serial = {one.id: stepped.serve([(0, one)])[one.id].bits for one in asked}
    for what, replies in (
        ("together", stepped.serve([(0, one) for one in asked])),
        ("drafted together", stepped.serve([(at, one) for at, one in enumerate(asked)], RandomDrafter(vocabulary), 7)),
    ):
        if {name: reply.bits for name, reply in replies.items()} != serial:
            raise SystemExit(f"{what}: tokens or states differ from serial steps")
    distinct = len({token for tokens, _ in serial.values() for token in tokens})
    return {"requests": len(asked), "tokens_each": REPLY, "distinct_tokens": distinct}


def check(streams: Streams, rows: int) -> None:
    """Stops the program unless a captured step has the bits of a plain one, logits of all rows included."""
    windows, found = streams.windows(rows), []
    for captured in (True, False):
        streams.rounds.graphs = captured
        output = streams.model.run_step(windows)
        found.append((output.hidden.clone(), streams.model.logits(output).clone()))
    streams.rounds.graphs = True
    if not all(torch.equal(one, other) for one, other in zip(*found, strict=True)) or not found[0][1].isfinite().all():
        raise SystemExit(f"{rows} rows: a captured step and a plain one differ, or are not finite")


def distinct(streams: Streams, rows: int) -> float:
    """Experts that a round's rows choose in a layer, all layers' mean. Weights drawn at random do not route evenly."""
    counts, plain = [], choose.choose

    def counted(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, weights = plain(*given)
        counts.append(chosen[chosen >= 0].unique().numel())
        return chosen, weights

    streams.rounds.graphs, choose.choose = False, counted
    streams.round(streams.windows(rows))
    streams.rounds.graphs, choose.choose = True, plain
    return round(statistics.mean(counts), 1)


def timeline(graph: torch.cuda.CUDAGraph) -> dict[str, Any]:
    """Launches of one replay; of its time, that in which no kernel ran, and each kernel's share of the rest.

    Kernels overlap: time counts for the one that began first.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    events = sorted((event for event in seen.events() or () if event.device_time > 0), key=lambda event: event.time_range.start)
    begun = done = events[0].time_range.start
    idle, own = 0.0, defaultdict[str, float](float)
    for event in events:
        start, end = event.time_range.start, event.time_range.end
        idle += max(0.0, start - done)
        own[event.name.split("<")[0][-40:]] += max(0.0, end - max(start, done))
        done = max(done, end)
    total = done - begun
    shares = {name: round(value / total, 4) for name, value in sorted(own.items(), key=lambda pair: -pair[1])}
    return {"nodes": len(events), "idle_us": round(idle, 1), "share": {name: value for name, value in shares.items() if value >= 0.002}}


def measure(streams: Streams, rows: int) -> dict[str, Any]:
    """Medians over rounds of random tokens."""
    check(streams, rows)
    wall, replay = [], []
    for _ in range(ROUNDS + 2):
        wall.append(streams.timed(rows))
        graph = streams.rounds.graph(rows)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        replay.append(start.elapsed_time(end))
    found = {"round_ms": round(statistics.median(wall[2:]), 3), "graph_ms": round(statistics.median(replay[2:]), 3)}
    streams.rounds.graphs = False
    found["launched_ms"] = round(statistics.median([streams.timed(rows) for _ in range(ROUNDS)][2:]), 3)
    streams.rounds.graphs = True
    found["distinct_experts"] = distinct(streams, rows)
    return {**found, "floor_asked_ms": FLOORS_MS.get(rows), **timeline(streams.rounds.graph(rows))}


def main() -> None:
    """Draw, check, time, write."""
    with torch.inference_mode():
        out, model, report = opened(__doc__, "q4")
        report["same_bits"] = same_replies(model)
        streams = Streams(model)
        found = {str(rows): measure(streams, rows) for rows in WINDOWS}
    report["round_ms"] = {rows: one["round_ms"] for rows, one in found.items()}
    report["rounds"] = found
    for rows, one in found.items():
        print(rows, one, flush=True)
    write(out, report)


if __name__ == "__main__":
    main()
