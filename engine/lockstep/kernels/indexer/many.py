"""Scores and choice of pools of a prompt slice's rows on a CUDA device, over pages: two launches for a part of the rows."""

from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda

SOURCE = Path(__file__).with_name("many.cu")
ROWS, CHUNK, MOST_SCORES = 64, 128, 1 << 28


def choose(
    queries: Tensor, projected: Tensor, pooled: Tensor, pages: Tensor, first: int, count: int, scale: float, found: dict[str, int]
) -> Tensor | None:
    """Pools each row at position `first + r` with more than `POOLS` of them attends, ascending, int32 `[R, POOLS]`.

    Other rows are not written; None if no row has so many. `found` as of `paged.macros`.
    """
    reach = (first + count) // 4
    if reach <= found["POOLS"]:
        return None
    kernels = cuda.load(SOURCE, found, queries.device, {"score": 0, "select": 0})
    chosen = torch.empty(len(queries), found["POOLS"], dtype=torch.int32, device=queries.device)
    most = max(ROWS, MOST_SCORES // reach // ROWS * ROWS)
    scores = torch.empty(min(most, len(queries)), reach, device=queries.device)
    chunks = -(-reach // CHUNK)
    for begin in range(0, count, most):
        held = min(most, count - begin)
        given = (queries[begin:], projected[begin:], pooled, pages, scores, first + begin, held, reach, chunks, scale)
        kernels["score"](-(-held // ROWS) * chunks, 256, given, True)
        kernels["select"](held, 256, (scores, chosen[begin:], first + begin, held, reach), True)
    return chosen
