"""How many threads a rank computes with. One: sums then have one order, and ranks never wait for each other's spinning threads."""

from __future__ import annotations

import torch

COMPUTE_THREADS = 1


def place_rank(rank: int) -> None:
    """Settle the calling process before it loads anything. `rank` counts the ranks of this host from 0."""
    if rank < 0:
        raise ValueError(f"rank {rank}; needed: 0 or more")
    torch.set_num_threads(COMPUTE_THREADS)
