"""Which configuration of one launch is the fastest of those that change no bit. Knows no kernel, no model and no clock of its own."""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from lockstep.config.launch_table import Refused
from lockstep.kernels.tuned import Configuration
from tuning.poison import poisoned

LEAST_GAIN = 0.02
COMPILERS = 8


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one round over all timed row counts, and how far apart its repeats lay, as a part of it."""

    us: float
    spread: float


class Bench(Protocol):
    """One launch on one device."""

    seeds: Sequence[int]
    rows: tuple[int, int]

    def allowed(self, configuration: Configuration) -> bool:
        """False for a point of the space that this launch cannot run with."""
        ...

    def compile(self, configuration: Configuration) -> str:
        """Compile it; why it is not to run, empty if it may. Raises the compiler's error. May be called from several threads."""
        ...

    def run(self, configuration: Configuration, seed: int, rows: int) -> Tensor:
        """Outputs for the inputs that `seed` draws."""
        ...

    def time(self, configuration: Configuration) -> Timing:
        """How long it takes."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """What was chosen (perhaps the default), and what was tried on the way."""

    configuration: Configuration
    timing: Timing
    default: Timing
    tried: int
    refused: list[Refused] = field(default_factory=list)


def points(space: Mapping[str, Sequence[int]], default: Configuration, allowed: Callable[[Configuration], bool]) -> list[dict[str, int]]:
    """Every allowed point of a space but the default, in the order of the space."""
    every = (dict(zip(space, values, strict=True)) for values in itertools.product(*space.values()))
    return [point for point in every if point != dict(default) and allowed(point)]


def search(bench: Bench, default: Configuration, candidates: Sequence[Configuration]) -> Found:
    """Compile all, compare all, time those whose bits are the default's, then time the best against the default once more.

    Raises what `Bench.compile` raises for the first configuration that does not compile.
    """
    with ThreadPoolExecutor(COMPILERS) as compilers:
        _, *refusals = compilers.map(bench.compile, (default, *candidates))
    asked = [(seed, rows) for seed in bench.seeds for rows in sorted(set(bench.rows))]
    wanted = {one: _run(bench, default, *one) for one in asked}
    refused, timed = [], []
    own = bench.time(default)
    for candidate, refusal in zip(candidates, refusals, strict=True):
        reason = refusal or next((why for one in asked if (why := _difference(wanted[one], _run(bench, candidate, *one), *one))), "")
        if reason:
            refused.append(Refused(dict(candidate), reason))
        else:
            timed.append((bench.time(candidate), candidate))
    if timed:
        timing, best = min(timed, key=lambda pair: pair[0].us)
        if beats(timing, own):
            again, default_again = bench.time(best), bench.time(default)
            if beats(again, default_again):
                return Found(best, again, default_again, len(candidates), refused)
    return Found(default, own, own, len(candidates), refused)


def beats(one: Timing, default: Timing) -> bool:
    """Faster by 2 % and by more than repeats of either lie apart."""
    return 1 - one.us / default.us > max(LEAST_GAIN, one.spread, default.spread)


def timing_of(repeats: Sequence[float]) -> Timing:
    """The median, and the distance between the quartiles as a part of it. At least four repeats, microseconds."""
    low, middle, high = statistics.quantiles(repeats, n=4)
    return Timing(middle, (high - low) / middle)


def _run(bench: Bench, configuration: Configuration, seed: int, rows: int) -> Tensor:
    with poisoned():
        return bench.run(configuration, seed, rows)


def _difference(wanted: Tensor, found: Tensor, seed: int, rows: int) -> str:
    """Where bits differ; empty if nowhere. NaN is told as such: nothing a kernel wrote."""
    left, right = wanted.view(-1), found.view(-1)
    if left.dtype.is_floating_point and bool(right.isnan().any()):
        return f"NaN, so not all was written: seed {seed}, {rows} rows"
    places = (left != right).nonzero().view(-1)
    return f"other bits: seed {seed}, {rows} rows, {len(places)} of {len(left)} values, first at {int(places[0])}" if len(places) else ""
