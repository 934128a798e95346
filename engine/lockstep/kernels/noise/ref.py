"""Noise that is a function of (seed, position, token) and of nothing else: splitmix64 as a keyed hash, Gumbel from its top 53 bits."""

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LARGEST_U = 1.0 - 2.0**-53


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers strictly between 0 and 1 from the upper 53 of 64 random bits each."""
    # exact: the largest draw would round to 1 and its noise to infinity.
    return np.minimum((bits >> np.uint64(11)) * 2.0**-53 + 2.0**-54, _LARGEST_U)


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise, float64, one value per token id. `seed` is unsigned 64-bit, `position` that of the token to choose."""
    with np.errstate(over="ignore"):
        row = _splitmix64(_splitmix64(np.array([seed], np.uint64)) ^ np.uint64(position))
        bits = _splitmix64(row ^ tokens.astype(np.uint64))
    return -np.log(-np.log(uniform(bits)))
