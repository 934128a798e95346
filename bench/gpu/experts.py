"""The grouped expert kernel on one GPU at the real shapes of one rank of two: checked, then timed, in one call.

`PYTHONPATH=engine python bench/gpu/experts.py OUT.json` builds random experts on the device, stops with an error if a check fails, then
times gate/up, down and the whole call inside a CUDA graph over several layers, so that no weight is read twice from the L2 cache. `--tries`
also times other launch shapes, `--plain` lets no launch begin before the one in front of it has ended. TB/s count the trellis bytes of
the distinct experts of a call.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import torch
from result import begun, write
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.exl3.ref import decode_inner, decode_outer
from lockstep.kernels.experts import grouped
from lockstep.kernels.experts.grouped import ALU_ONLY, BYTES_ONLY, REAL, GroupedExperts, Launch, Shape

HIDDEN, WIDTH, EXPERTS, SLOTS, LIMIT = 4096, 1024, 288, 8, 10.0
ROWS_OF_DISTINCT = {8: 1, 31: 4, 58: 8, 105: 16, 171: 32}
VARIANTS = {"real": REAL, "bytes_only": BYTES_ONLY, "alu_only": ALU_ONLY}
SHAPES = {"gate_up": Shape(HIDDEN, 2 * WIDTH, 2), "down": Shape(WIDTH, HIDDEN, 1)}
DEVICE = torch.device("cuda", 0)


def random_experts(count: int, seed: int, hidden: int = HIDDEN, width: int = WIDTH, codebook: str = "mcg") -> GroupedExperts:
    """Random words and scales. Any words are a legal trellis."""
    draw = torch.Generator(DEVICE).manual_seed(seed)

    def words(*shape: int) -> Tensor:
        return torch.randint(-(1 << 31), 1 << 31, shape, generator=draw, device=DEVICE, dtype=torch.int32)

    def scale(*shape: int, size: float) -> Tensor:
        return (torch.randn(*shape, generator=draw, device=DEVICE) * size).half()

    return GroupedExperts(
        gate_up=words(count, 2 * width // 64, hidden // 64, 4, 32, 4),
        down=words(count, hidden // 64, width // 64, 4, 32, 4),
        in_suh=scale(2, count, hidden, size=0.02),
        in_svh=scale(2, count, width, size=1.0),
        down_suh=scale(count, width, size=0.02),
        down_svh=scale(count, hidden, size=1.0),
        codebook=codebook,
    )


def drawn_routing(rows: int, seed: int, count: int = EXPERTS, slots: int = SLOTS) -> tuple[Tensor, Tensor]:
    """Uniform routing, drawn for every row."""
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(count, generator=draw)[:slots] for _ in range(rows)])
    return chosen.to(DEVICE), torch.rand(rows, slots, generator=draw).to(DEVICE)


def activations(rows: int, seed: int, hidden: int = HIDDEN) -> Tensor:
    """bf16 rows of unit size."""
    return torch.randn(rows, hidden, generator=torch.Generator().manual_seed(seed)).bfloat16().to(DEVICE)


def unpacked(words: Tensor) -> Tensor:
    """The inverse of `grouped.pack_words`."""
    n, k = words.shape[:2]
    tiles = words.view(n, k, 4, 8, 4, 4).permute(1, 4, 0, 2, 3, 5).reshape(k * 4, n * 4, 32)
    return tiles.contiguous().view(torch.int16)


def check_decoding(shape: Shape, codebook: str, launch: Launch | None = None) -> int:
    """Unit rows through the product must give the reference's weights bit for bit. Returns how many weights were compared."""
    draw = torch.Generator(DEVICE).manual_seed(shape.inputs)
    trellis = torch.randint(-(1 << 15), 1 << 15, (shape.inputs // 16, shape.outputs // 16, 64), generator=draw, device=DEVICE).to(
        torch.int16
    )
    wanted = decode_inner(trellis, codebook).float()
    packed, most = grouped.pack_words(trellis).unsqueeze(0), grouped.MOST_PAIRS
    for first in range(0, shape.inputs, most):
        rows = min(most, shape.inputs - first)
        x = torch.zeros(shape.sides, rows, shape.inputs, dtype=torch.float16, device=DEVICE)
        x[:, torch.arange(rows), first + torch.arange(rows)] = 1
        found = grouped.multiply(grouped.placed(x), one_expert_plan(rows), packed, shape, codebook, launch=launch)
        if not torch.equal(found, wanted[first : first + rows]):
            wrong = int((found != wanted[first : first + rows]).sum())
            raise SystemExit(f"{shape} {codebook}: {wrong} of {found.numel()} decoded weights differ from the reference")
    return wanted.numel()


def one_expert_plan(pairs: int) -> Tensor:
    """A plan in which all pairs have expert 0."""
    plan = torch.zeros(1 + grouped.MOST_PAIRS * (2 + grouped.ITEM_ROWS), dtype=torch.int32)
    items = -(-pairs // grouped.ITEM_ROWS)
    plan[0] = items
    for item in range(items):
        members = range(item * grouped.ITEM_ROWS, min(pairs, (item + 1) * grouped.ITEM_ROWS))
        plan[1 + grouped.MOST_PAIRS + item] = len(members)
        start = 1 + 2 * grouped.MOST_PAIRS + item * grouped.ITEM_ROWS
        plan[start : start + len(members)] = torch.tensor(list(members))
    return plan.to(DEVICE)


def published(x: Tensor, chosen: Tensor, weights: Tensor, experts: GroupedExperts) -> Tensor:
    """The experts as the format and the model describe them, in float64 without any rounding between."""
    total = torch.zeros(len(x), experts.in_suh.shape[2], dtype=torch.float64, device=DEVICE)
    half = experts.gate_up.shape[1] // 2
    for expert in chosen.unique().tolist():
        parts = (
            (experts.gate_up[expert, :half], experts.in_suh[0], experts.in_svh[0]),
            (experts.gate_up[expert, half:], experts.in_suh[1], experts.in_svh[1]),
            (experts.down[expert], experts.down_suh, experts.down_svh),
        )
        gate, up, down = (decode_outer(unpacked(words), suh[expert], svh[expert], experts.codebook) for words, suh, svh in parts)
        rows, slots = (chosen == expert).nonzero(as_tuple=True)
        value = x[rows].double()
        low, high = (value @ gate).clamp(max=LIMIT), (value @ up).clamp(-LIMIT, LIMIT)
        total[rows] += weights[rows, slots].double().unsqueeze(1) * ((low * torch.sigmoid(low) * high) @ down)
    return total


def check_values(experts: GroupedExperts) -> float:
    """Relative distance to float64 (bf16 activation and fp16 inputs round on the way)."""
    chosen, weights = drawn_routing(8, 5, len(experts.down_suh))
    x = activations(8, 6)
    wanted = published(x, chosen, weights, experts)
    found = grouped.apply(x, chosen, weights, experts, LIMIT).double()
    distance = float((found - wanted).norm() / wanted.norm())
    if not distance < 1e-2:
        raise SystemExit(f"values are {distance:.2e} from float64; needed: below 1e-2")
    return distance


def check_reference(experts: GroupedExperts) -> float:
    """Relative distance of the inner products to float64 sums over the same fp16 inputs and weights."""
    x = (torch.randn(2, 8, HIDDEN, generator=torch.Generator().manual_seed(3)) * 0.1).half().to(DEVICE)
    found = grouped.multiply(grouped.placed(x), one_expert_plan(8), experts.gate_up, SHAPES["gate_up"], experts.codebook).double()
    inner = decode_inner(unpacked(experts.gate_up[0]), experts.codebook).double()
    wanted = torch.cat([x[0].double() @ inner[:, :WIDTH], x[1].double() @ inner[:, WIDTH:]], 1)
    distance = float((found - wanted).norm() / wanted.norm())
    if not distance < 1e-5:
        raise SystemExit(f"inner products are {distance:.2e} from float64; needed: below 1e-5")
    return distance


def check_rows(experts: GroupedExperts) -> int:
    """Every row count, place and rerun gives a row the bits it has alone; so does a graph. Returns the number of comparisons."""
    count = len(experts.down_suh)
    chosen, weights = drawn_routing(32, 7, count)
    chosen[20:] = chosen[:12]  # company that shares experts, up to nine rows of one
    chosen[24:] = chosen[0]
    x = activations(32, 8)
    alone = torch.cat([grouped.apply(x[r : r + 1], chosen[r : r + 1], weights[r : r + 1], experts, LIMIT) for r in range(32)])
    compared = 0
    for rows in range(1, 33):
        for first in {0, (32 - rows) // 2, 32 - rows}:
            part = slice(first, first + rows)
            poison()
            found = grouped.apply(x[part], chosen[part], weights[part], experts, LIMIT)
            same(found, alone[part], f"{rows} rows from {first}")
            compared += rows
    order = torch.randperm(32, generator=torch.Generator().manual_seed(9)).to(DEVICE)
    same(grouped.apply(x[order], chosen[order], weights[order], experts, LIMIT), alone[order], "another order")
    graph, held = captured(lambda: grouped.apply(x, chosen, weights, experts, LIMIT))
    for _ in range(3):
        held.fill_(torch.nan)
        graph.replay()
        same(held, alone, "graph")
    return compared + 32 * 4


def same(found: Tensor, wanted: Tensor, what: str) -> None:
    """Raise SystemExit unless both have the same bits and are finite."""
    if not torch.equal(found, wanted) or not bool(found.isfinite().all()):
        raise SystemExit(f"{what}: {int((found != wanted).sum())} of {found.numel()} values have other bits than the rows alone")


def poison() -> None:
    """Leave not-a-number in the memory that the next call will get."""
    held = [torch.full((size,), torch.nan, device=DEVICE) for size in (1 << 14, 1 << 18, 1 << 20, 1 << 21)]
    torch.cuda.synchronize()
    del held


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of `call` and what it returned."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    return graph, out


def timed(call: Callable[[], Any], repeats: int = 9) -> float:
    """Median milliseconds of one replay of `call` as a graph."""
    graph, held = captured(call)
    times = []
    for _ in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    del graph, held
    return statistics.median(times[2:])


class Layers:
    """Experts of several layers and, for one row count, what each layer's products get."""

    def __init__(self, count: int) -> None:
        self.experts = [random_experts(EXPERTS, seed) for seed in range(count)]

    def route(self, rows: int) -> int:
        """Draw rows and routing for every layer. Returns the distinct experts of all layers together."""
        self.x = activations(rows, rows)
        self.routing = [drawn_routing(rows, 1000 * rows + layer) for layer in range(len(self.experts))]
        pairs = rows * SLOTS
        small = cuda.load(grouped.SOURCE, grouped.small_macros(HIDDEN, WIDTH, SLOTS), DEVICE, {"prepare": 0})
        self.inputs, self.plans = [], []
        for experts, (chosen, _) in zip(self.experts, self.routing, strict=True):
            rotated = torch.empty(2, pairs, HIDDEN, dtype=torch.float16, device=DEVICE)
            plan = torch.zeros(1 + grouped.MOST_PAIRS * (2 + grouped.ITEM_ROWS), dtype=torch.int32, device=DEVICE)
            blocks = 1 + pairs * HIDDEN // 128 // 8
            small["prepare"](
                blocks, 256, (self.x, chosen, experts.in_suh, rotated, plan, pairs, EXPERTS), grouped.launch_on(DEVICE).overlap
            )
            self.inputs.append(rotated)
            self.plans.append(plan)
        self.own = torch.randn(1, pairs, WIDTH, generator=torch.Generator().manual_seed(rows)).half().to(DEVICE)
        return sum(len(chosen.unique()) for chosen, _ in self.routing)

    def product(self, name: str, variant: int, launch: Launch | None = None) -> Callable[[], None]:
        """All layers' products of one kind."""

        def run() -> None:
            for experts, x, plan in zip(self.experts, self.inputs, self.plans, strict=True):
                packed = experts.gate_up if name == "gate_up" else experts.down
                grouped.multiply(x if name == "gate_up" else self.own, plan, packed, SHAPES[name], experts.codebook, variant, launch)

        return run

    def whole(self, variant: int) -> Callable[[], None]:
        """All five launches of every layer."""

        def run() -> None:
            for experts, (chosen, weights) in zip(self.experts, self.routing, strict=True):
                grouped.apply(self.x, chosen, weights, experts, LIMIT, variant)

        return run


def figures(milliseconds: float, layers: int, distinct: int, weights: int) -> dict[str, float]:
    """Microseconds a layer, TB/s of trellis and weights a second of `distinct` experts with `weights` weights each."""
    seconds = milliseconds / 1e3
    return {
        "us_per_layer": round(seconds / layers * 1e6, 2),
        "tb_per_s": round(distinct * weights / 2 / seconds / 1e12, 3),
        "weights_per_s": round(distinct * weights / seconds, -6),
    }


def measure(layers: Layers) -> dict[str, Any]:
    """Every count of distinct experts, product and variant."""
    sizes = {"gate_up": 2 * HIDDEN * WIDTH, "down": HIDDEN * WIDTH, "call": 3 * HIDDEN * WIDTH}
    count, found = len(layers.experts), {}
    for label, rows in ROWS_OF_DISTINCT.items():
        distinct = layers.route(rows)
        row: dict[str, Any] = {"rows": rows, "distinct_per_layer": round(distinct / count, 2)}
        for name, size in sizes.items():
            runs = {kind: layers.whole(code) if name == "call" else layers.product(name, code) for kind, code in VARIANTS.items()}
            row[name] = {kind: figures(timed(run), count, distinct, size) for kind, run in runs.items()}
            parts = row[name]
            limit = max(parts["bytes_only"]["us_per_layer"], parts["alu_only"]["us_per_layer"])
            parts["real_over_limit"] = round(parts["real"]["us_per_layer"] / limit, 3)
        found[str(label)] = row
        print(label, json.dumps(row), flush=True)
    return found


def tries(layers: Layers) -> list[dict[str, Any]]:
    """Other launch shapes, each checked for bits before it is timed."""
    found = []
    plain = grouped.LAUNCHES[cuda.target(DEVICE)]
    wanted = {}
    shapes = [
        replace(plain, stages=stages, blocks=blocks, buffers=buffers, unroll=unroll, overlap=overlap)
        for stages, blocks, buffers in ((2, 2, 1), (2, 2, 2), (4, 2, 2), (2, 3, 1))
        for unroll, overlap in ((4, True), (2, True), (4, False))
    ]
    with ThreadPoolExecutor(16) as pool:
        for launch in shapes:
            for shape in SHAPES.values():
                for code in VARIANTS.values():
                    macros = shape.macros(launch, "mcg", code)
                    pool.submit(cuda.load, grouped.SOURCE, macros, DEVICE, {"product": launch.shared_bytes})
    for launch in shapes:
        for label in (8, 58):
            distinct = layers.route(ROWS_OF_DISTINCT[label])
            for name in SHAPES:
                x = layers.inputs[0] if name == "gate_up" else layers.own
                packed = getattr(layers.experts[0], name)
                out = grouped.multiply(x, layers.plans[0], packed, SHAPES[name], "mcg", REAL, launch)
                same(out, wanted.setdefault((label, name), out), f"{launch}")
                size = (2 if name == "gate_up" else 1) * HIDDEN * WIDTH
                row = {
                    kind: figures(timed(layers.product(name, code, launch)), len(layers.experts), distinct, size)
                    for kind, code in VARIANTS.items()
                }
                found.append({"launch": asdict(launch), "distinct": label, "product": name, **row})
                print({k: v["tb_per_s"] for k, v in row.items()}, *asdict(launch).values(), label, name, flush=True)
    return found


def copy_rate() -> float:
    """TB/s of a large elementwise pass, bytes read plus written."""
    source = torch.randint(0, 100, (1 << 30,), dtype=torch.int32, device=DEVICE)
    target = torch.empty_like(source)
    return round(2 * source.numel() * 4 / (timed(lambda: torch.add(source, 1, out=target)) / 1e3) / 1e12, 3)


def checks() -> dict[str, Any]:
    """All checks; each stops the program if it fails."""
    tiny = {"gate_up": Shape(256, 256, 2), "down": Shape(128, 256, 1)}
    decoded = {
        f"{name} {shape.inputs}x{shape.outputs} {codebook}": check_decoding(shape, codebook)
        for shapes in (SHAPES, tiny)
        for name, shape in shapes.items()
        for codebook in ("mcg", "mul1", "3inst")
    }
    experts = random_experts(24, 99)
    return {
        "weights_decoded_bit_equal": decoded,
        "inner_products_from_float64": check_reference(experts),
        "values_from_float64": check_values(experts),
        "row_comparisons_bit_equal": check_rows(experts),
    }


def main() -> None:
    """Check, measure, write."""
    asked, report = begun(__doc__, layers=12, tries=False, plain=False)
    card = cuda.target(DEVICE)
    if asked.plain:
        grouped.LAUNCHES[card] = replace(grouped.LAUNCHES[card], overlap=False)
    torch.backends.cuda.matmul.allow_tf32 = False
    since = time.monotonic()
    with torch.inference_mode():
        report["launch"] = asdict(grouped.LAUNCHES[card])
        report["checks"] = checks()
        print(json.dumps(report["checks"]), flush=True)
        report["large_pass_tb_per_s"] = copy_rate()
        layers = Layers(asked.layers)
        print(f"ready after {time.monotonic() - since:.1f} s", flush=True)
        report["distinct_experts"] = measure(layers)
        if asked.tries:
            report["launch_tries"] = tries(layers)
    write(asked.out, report)
    print(f"done after {time.monotonic() - since:.1f} s")


if __name__ == "__main__":
    main()
