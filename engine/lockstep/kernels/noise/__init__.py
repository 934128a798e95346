"""Sampling noise as a function of (seed, position, token): the sampler's and, since it needs no model, every drafter's."""

import numpy as np
from numpy.typing import NDArray

from lockstep.kernels.noise import ref


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise, float64, one value per token id. `seed` is unsigned 64-bit, `position` that of the token to choose."""
    return ref.gumbel(seed, position, tokens)
