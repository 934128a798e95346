"""Are the GPUs there that are asked for?"""

from __future__ import annotations

from dataclasses import dataclass

from recipe.checks import Finding


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    memory_mib: int


@dataclass(frozen=True)
class Gpus:
    """`problem` says why none could be listed; empty where the driver answered."""

    present: tuple[Gpu, ...]
    problem: str = ""


def check(facts: Gpus, need: tuple[int, ...]) -> Finding:
    """`need`: device numbers; () for a profile that uses none."""
    if not need:
        return Finding("I_GPU", "none needed: the engine computes on the CPU")
    wanted = f"GPUs {','.join(map(str, need))}"
    if facts.problem:
        return Finding("E_GPU", facts.problem, wanted)
    by_index = {gpu.index: gpu for gpu in facts.present}
    missing = [index for index in need if index not in by_index]
    if missing:
        listed = ", ".join(f"{gpu.index} {gpu.name}" for gpu in facts.present) or "no GPU"
        return Finding("E_GPU", f"{listed}; no GPU {', '.join(map(str, missing))}", wanted)
    return Finding("I_GPU", ", ".join(f"{index} {by_index[index].name} {by_index[index].memory_mib} MiB" for index in need))
