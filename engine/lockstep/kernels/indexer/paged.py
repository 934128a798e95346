"""Scores and choice of pools on a CUDA device, over pages: two launches for all rows of a step, whatever their contexts."""

from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.round import Round

SOURCE = Path(__file__).with_name("paged.cu")
MOST_POOLS = 8 * 1024 * 32
CLUSTER, THREADS, BLOCKS = 8, 1024, 528


def macros(heads: int, width: int, pools: int, queries: int, offset: int, pitch: int, weights_offset: int, coded: bool) -> dict[str, int]:
    """What the source is compiled with."""
    sizes = {"HEADS": heads, "KEY": width, "POOLS": pools, "QUERIES": queries, "OFFSET": offset, "PITCH": pitch}
    return {**sizes, "WEIGHTS_OFFSET": weights_offset, "FP8": int(coded)}


def choose(queries: Tensor, projected: Tensor, pooled: Tensor, at: Round, scale: float, found: dict[str, int]) -> Tensor:
    """Pools each row with more than `POOLS` of them attends, ascending, int32 `[rows, POOLS]`; other rows are not written."""
    assert at.scores is not None
    kernels = cuda.load(SOURCE, found, queries.device, {"score": 0, "select": 0})
    chosen = torch.empty(at.rows, found["POOLS"], dtype=torch.int32, device=queries.device)
    reach = at.scores.shape[1]
    given = (queries, projected, pooled, at.plan, at.pages, at.scores, at.rows, at.most, at.pages.shape[1], reach, scale)
    kernels["score"](BLOCKS, 256, given, True)
    kernels["select"](at.rows * CLUSTER, THREADS, (at.scores, at.plan, chosen, at.rows, at.most, reach), True)
    return chosen
