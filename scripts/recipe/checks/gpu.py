"""Are the GPUs there that are asked for, of the kind this was measured on, free, cool and well connected?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recipe.checks import Finding

MEASURED, MEASURED_WATTS, LEAST_DRIVER = "RTX PRO 6000", 300, 580
BUSY_MIB = 1000
# Reasons of the driver for lower clocks that are no choice of anybody: too hot, or too little power from outside.
THROTTLED = 0x08 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Gpu:
    """Figures as the driver tells them; None where it does not. `throttle` holds its bits of reasons."""

    index: int
    uuid: str
    bus: str
    name: str
    driver: str
    total_mib: int
    free_mib: int
    used_mib: int
    watts: float | None = None
    celsius: int | None = None
    throttle: int = 0
    width: int | None = None
    most_width: int | None = None
    generation: int | None = None
    most_generation: int | None = None
    programs: tuple[str, ...] = ()

    def is_named(self, word: str) -> bool:
        """Whether GPUS means this one: by number, UUID (its beginning is enough) or bus id, whatever zeros the latter begins with."""
        bus = word.rpartition(":")[0] and word.lower().lstrip("0")
        return word == str(self.index) or (word.startswith("GPU-") and self.uuid.startswith(word)) or bus == self.bus.lower().lstrip("0")


@dataclass(frozen=True)
class Gpus:
    """`problem` says why none could be listed. `ways` names how pairs of numbers are connected, such as PIX or SYS."""

    present: tuple[Gpu, ...]
    problem: str = ""
    ways: tuple[tuple[int, int, str], ...] = ()

    def named(self, word: str) -> Gpu | None:
        return next((gpu for gpu in self.present if gpu.is_named(word)), None)

    def chosen(self, words: Sequence[str]) -> list[Gpu]:
        return [gpu for word in words if (gpu := self.named(word))]


def check(facts: Gpus, need: Sequence[str]) -> Finding:
    """`need`: words of GPUS; () for a profile that uses none."""
    if not need:
        return Finding("I_GPU", "none needed: the engine computes on the CPU")
    wanted = f"GPUs {','.join(need)}"
    if facts.problem:
        return Finding("E_GPU", facts.problem, wanted)
    missing = [word for word in need if facts.named(word) is None]
    if missing:
        listed = ", ".join(f"{gpu.index} {gpu.name}" for gpu in facts.present) or "no GPU"
        return Finding("E_GPU", f"{listed}; no GPU {', '.join(missing)}", wanted)
    chosen = facts.chosen(need)
    if len({gpu.uuid for gpu in chosen}) < len(need):
        return Finding("E_GPU", f"{', '.join(need)} name the same GPU", "different GPUs", "correct GPUS")
    old = next((gpu for gpu in chosen if int(gpu.driver.partition(".")[0] or 0) < LEAST_DRIVER), None)
    if old is not None:
        return Finding("E_GPU", f"driver {old.driver}", f"driver {LEAST_DRIVER} or later", "install a later NVIDIA driver")
    return Finding("I_GPU", ", ".join(f"{gpu.index} {gpu.name} {gpu.free_mib} of {gpu.total_mib} MiB free" for gpu in chosen))


def room(chosen: Sequence[Gpu], free_mib: int) -> Finding | None:
    """None where nothing else uses the GPUs and `free_mib` are free on each. Memory that belongs to no program may yet be given back."""
    for gpu in chosen:
        if gpu.programs:
            return Finding("E_GPU_BUSY", f"GPU {gpu.index} is used by {', '.join(gpu.programs)}", "GPUs that no other program uses")
    for gpu in chosen:
        if gpu.used_mib >= BUSY_MIB:
            return Finding("E_GPU_BUSY", f"{gpu.used_mib} MiB of GPU {gpu.index} in use by nobody to be seen", f"less than {BUSY_MIB} MiB")
        if gpu.free_mib < free_mib:
            return Finding("E_GPU_MEMORY", f"{gpu.free_mib} MiB free on GPU {gpu.index}", f"{free_mib} MiB (MIN_GPU_FREE_MIB)")
    return None


def state(chosen: Sequence[Gpu], most_celsius: int) -> Iterator[Finding]:
    """What may cost speed, or the server: model, power limit, heat, throttling."""
    for gpu in chosen:
        name = f"GPU {gpu.index}"
        if MEASURED not in gpu.name:
            yield Finding("W_GPU_MODEL", f"{name} is {gpu.name}, measured was {MEASURED}")
        if gpu.watts is not None and round(gpu.watts) != MEASURED_WATTS:
            yield Finding("W_POWER", f"the limit of {name} is {gpu.watts:g} W, measured was {MEASURED_WATTS} W")
        if gpu.celsius is not None and gpu.celsius > most_celsius:
            yield Finding("E_GPU_HOT", f"{name} has {gpu.celsius} °C before any work", f"at most {most_celsius} °C (MAX_GPU_CELSIUS)")
        if gpu.throttle & THROTTLED:
            yield Finding("W_THROTTLE", f"{name} keeps its clocks down (reasons {gpu.throttle:#x})")


def links(facts: Gpus, chosen: Sequence[Gpu]) -> Iterator[Finding]:
    """PCIe: how wide and fast each link is, and what lies between the GPUs."""
    for gpu in chosen:
        found, most = (gpu.width, gpu.generation), (gpu.most_width, gpu.most_generation)
        if None not in (*found, *most) and found != most:
            yield Finding("W_PCIE", f"GPU {gpu.index} has PCIe {found[1]} x{found[0]}, it could have PCIe {most[1]} x{most[0]}")
    numbers = {gpu.index for gpu in chosen}
    for one, other, way in facts.ways:
        if {one, other} == numbers and one < other:
            code = "W_PCIE" if way == "SYS" else "I_GPU"
            yield Finding(code, f"between GPU {one} and {other}: {way}" + (", across two processors" if way == "SYS" else ""))
