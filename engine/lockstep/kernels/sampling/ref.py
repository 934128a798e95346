"""How much a candidate weighs, in whole units: the same products and sums in NumPy and on a GPU, so that both make the same cuts.

exact: units add up to the same number in any order, which sums of floating-point probabilities do not."""

import math

import numpy as np
from numpy.typing import NDArray

UNIT_BITS, STEPS = 45, 256
TABLE = np.exp2(-np.arange(STEPS) / STEPS)
# Of 2^-x for x below a step.
_C1, _C2, _C3, _C4 = 0.6931471805599453, 0.2402265069591007, 0.055504108664821576, 0.009618129107628477
_LOG2E, _MOST_RATE, _MOST_BITS = 1.4426950408889634, 1e300, 63.0


def weights(distance: NDArray[np.float64], temperature: float) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
    """exp(-distance / temperature), of distances from the largest value: as float64 within 2^-48, and in whole units of 2^-45."""
    with np.errstate(over="ignore"):
        bits = np.minimum(distance * min(_LOG2E / temperature, _MOST_RATE), _MOST_BITS)
    steps = np.floor(bits * STEPS)
    rest = bits - steps / STEPS
    part = (((_C4 * rest - _C3) * rest + _C2) * rest - _C1) * rest + 1.0
    steps = steps.astype(np.int64)
    part *= TABLE[steps % STEPS]
    halvings = steps // STEPS
    return np.ldexp(part, -halvings), (part * 2.0**UNIT_BITS).astype(np.uint64) >> halvings.astype(np.uint64)


def limit(part: float, total: int) -> int:
    """Units before which candidates are kept that are to hold `part` of `total`, at least one."""
    return max(1, math.ceil(part * float(total)))
