"""The launches that can be chosen, each with inputs of its own: what it runs on, what may be tried, how long it takes."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda, fp8
from lockstep.kernels.coded import encode_q4
from lockstep.kernels.experts import grouped
from lockstep.kernels.experts.grouped import GroupedExperts, Shape
from lockstep.kernels.linear import rows
from lockstep.kernels.linear.rows import RowMatrix
from lockstep.kernels.tuned import Case, Configuration, Tuned
from tuning.search import Bench, Timing, timing_of

# Weights are read from memory in a step, so a timed round goes over more of them than a cache holds.
TURN_BYTES, MOST_TURNS = 256 << 20, 32
REPEATS = 9
SLOTS, EXPERTS = 8, 288
_SPILLS = re.compile(r"(\d+) bytes spill stores")


def generator(device: torch.device, seed: int) -> torch.Generator:
    """A source of inputs."""
    return torch.Generator(device).manual_seed(seed)


def _compiled(source: Path, macros: cuda.Macros, device: torch.device, shared: dict[str, int]) -> str:
    """Why what the compiler made is not to run, empty if it is: then it is there from now on."""
    spilled = max(map(int, _SPILLS.findall(cuda.compile_source(source, macros, cuda.target(device))[1])), default=0)
    if spilled:
        return f"spills {spilled} bytes a thread"
    cuda.load(source, macros, device, shared)
    return ""


class _Measured:
    """What all benches share. `calls()` are the launches of one timed round."""

    calls: Callable[[], Sequence[Callable[[], Tensor]]]

    def __init__(self, kernel: Tuned, case: Case, device: torch.device, seeds: Sequence[int]) -> None:
        self.kernel, self.case, self.device, self.seeds = kernel, case, device, seeds

    def time(self, configuration: Configuration) -> Timing:
        """Replays of one captured round."""
        self.kernel.chosen[self.case] = configuration
        calls = self.calls()
        for call in calls:
            call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [call() for call in calls]
        times = []
        for _ in range(REPEATS + 2):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / len(kept))
        self.kernel.chosen.pop(self.case)
        return timing_of(times[2:])


class DenseBench(_Measured):
    """`linear.rows`: the case is what `rows.macros` says besides the space, the matrices are made of that."""

    def __init__(self, kernel: Tuned, case: Case, device: torch.device, seeds: Sequence[int]) -> None:
        super().__init__(kernel, case, device, seeds)
        names = [name for name in rows.macros([_empty(64, 16)], 1, "sm_90") if name not in kernel.space]
        self._told = dict(zip(names, map(int, case), strict=True))
        last = rows.TILE_ROWS * self._told["TILES"]
        self.rows: tuple[int, int] = (last - rows.TILE_ROWS + 1, last)
        first = self._made(seeds[0])
        count = max(2, min(MOST_TURNS, TURN_BYTES // sum(part.words.numel() * part.words.element_size() for part in first)))
        self._turn = [[replace(part, words=part.words.clone()) for part in first] for _ in range(count)]

    def allowed(self, configuration: Configuration) -> bool:
        """Pairs need two strips a block, others whole blocks in every matrix."""
        told, strips = self._told, configuration["STRIPS"]
        whole = all(told[f"N{at}"] % (rows.STRIP * strips) == 0 for at in range(rows.MOST_PARTS))
        return whole and (strips == 2 or not told["PAIRED"])

    def compile(self, configuration: Configuration) -> str:
        """See `Bench`."""
        found = {**self._told, **configuration}
        return _compiled(rows.SOURCE, found, self.device, {"rows_product": rows.shared_bytes(found)})

    def run(self, configuration: Configuration, seed: int, rows: int) -> Tensor:
        """See `Bench`."""
        self.kernel.chosen[self.case] = configuration
        out = self._product(self._made(seed), seed, rows)
        self.kernel.chosen.pop(self.case)
        return out

    def calls(self) -> Sequence[Callable[[], Tensor]]:
        """A product with each of several sets of matrices, all rows of the last tile."""
        return [lambda parts=parts: self._product(parts, 1, self.rows[1]) for parts in self._turn]

    def _product(self, parts: Sequence[RowMatrix], seed: int, count: int) -> Tensor:
        x, coded = self._drawn(seed, count)
        return rows.product(x, parts, coded, 10.0 if self._told["PAIRED"] else None)

    @lru_cache(maxsize=8)  # noqa: B019
    def _drawn(self, seed: int, count: int) -> tuple[Tensor, rows.Coded | None]:
        told = self._told
        # Rows lie as far apart as in the case, which heads of a wider row do.
        wide = torch.randn(count, told["FROM"], generator=generator(self.device, seed), device=self.device).bfloat16()
        x = wide[:, : told["HEADS"] * told["K"]]
        x = x.unflatten(1, (told["HEADS"], -1)) if told["HEADS"] > 1 else x
        coded = rows.FORMS.index("fp8") in (told[f"FORM{at}"] for at in range(rows.MOST_PARTS))
        return x, rows.encode(x.contiguous()) if coded else None

    def _made(self, seed: int) -> list[RowMatrix]:
        told, draw = self._told, generator(self.device, seed)
        parts = [(told[f"N{at}"], rows.FORMS[told[f"FORM{at}"]]) for at in range(rows.MOST_PARTS) if told[f"N{at}"]]
        return [replace(self._packed(count, form, draw), heads=told["HEADS"]) for count, form in parts]

    def _packed(self, outputs: int, form: str, draw: torch.Generator) -> RowMatrix:
        weight = torch.randn(outputs, self._told["K"], generator=draw, device=self.device) * self._told["K"] ** -0.5
        if form == "bf16":
            return rows.pack_bf16(weight.bfloat16())
        if form == "fp8":
            return rows.pack_fp8(*fp8.encode(weight))
        coded = encode_q4(weight)
        return rows.pack_q4(coded.codes, coded.factors)


def _empty(inputs: int, outputs: int) -> RowMatrix:
    return RowMatrix("bf16", inputs, outputs, torch.empty(0), torch.empty(0))


class ExpertsBench(_Measured):
    """`experts.grouped`: case (codebook, inputs, outputs, sides). Both products of a layer run, the other one as by default."""

    def __init__(self, kernel: Tuned, case: Case, device: torch.device, seeds: Sequence[int]) -> None:
        super().__init__(kernel, case, device, seeds)
        self.rows: tuple[int, int] = (1, 32)
        codebook, inputs, outputs, sides = case
        self._codebook, self._shape = str(codebook), Shape(int(inputs), int(outputs), int(sides))
        hidden, width = (int(inputs), int(outputs) // 2) if sides == 2 else (int(outputs), int(inputs))
        self._hidden = hidden
        self._experts = self._made(hidden, width, generator(device, seeds[0]))

    def allowed(self, configuration: Configuration) -> bool:
        """Its shared memory fits a block, and all blocks of a processor its registers."""
        return _launch(configuration).shared_bytes <= cuda.MOST_SHARED_BYTES

    def compile(self, configuration: Configuration) -> str:
        """See `Bench`."""
        launch = _launch(configuration)
        return _compiled(grouped.SOURCE, self._shape.macros(launch, self._codebook), self.device, {"product": launch.shared_bytes})

    def run(self, configuration: Configuration, seed: int, rows: int) -> Tensor:
        """See `Bench`."""
        self.kernel.chosen[self.case] = configuration
        out = grouped.apply(*self._drawn(seed, rows), self._experts, 10.0)
        self.kernel.chosen.pop(self.case)
        return out

    def calls(self) -> Sequence[Callable[[], Tensor]]:
        """Layers of few rows and of many, each with experts of its own."""
        drawn = [self._drawn(seed, count) for seed, count in enumerate((1, 1, 1, 1, 4, 4, 8, 8, 16, 32))]
        return [lambda one=one: grouped.apply(*one, self._experts, 10.0) for one in drawn]

    def _drawn(self, seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        draw = generator(self.device, seed)
        x = torch.randn(count, self._hidden, generator=draw, device=self.device).bfloat16()
        chosen = torch.rand(count, EXPERTS, generator=draw, device=self.device).topk(SLOTS).indices
        weights = torch.rand(count, SLOTS, generator=draw, device=self.device)
        return x, chosen, weights

    def _made(self, hidden: int, width: int, draw: torch.Generator) -> GroupedExperts:
        words = lambda *size: torch.randint(-(1 << 31), (1 << 31) - 1, size, generator=draw, device=self.device, dtype=torch.int32)  # noqa: E731
        signs = lambda *size: (torch.randint(0, 2, size, generator=draw, device=self.device) * 2 - 1).half()  # noqa: E731
        return GroupedExperts(
            gate_up=words(EXPERTS, 2 * width // 64, hidden // 64, 4, 32, 4),
            down=words(EXPERTS, hidden // 64, width // 64, 4, 32, 4),
            in_suh=signs(2, EXPERTS, hidden) * hidden**-0.5,
            in_svh=signs(2, EXPERTS, width),
            down_suh=signs(EXPERTS, width) * width**-0.5,
            down_svh=signs(EXPERTS, hidden),
            codebook=self._codebook,
        )


def _launch(configuration: Configuration) -> grouped.Launch:
    numbers = {name: value for name, value in configuration.items() if name != "overlap"}
    return grouped.Launch(**numbers, overlap=bool(configuration["overlap"]))


BENCHES: dict[str, Callable[[Tuned, Case, torch.device, Sequence[int]], Bench]] = {
    rows.KERNEL.name: DenseBench,
    grouped.KERNEL.name: ExpertsBench,
}
