"""The key selector of latent attention: pooled keys, scores, and a top-k with a total order. Knows no cache layout."""

from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.indexer import host, ref

SCORE_BLOCK = 512


def pool_keys(source: Tensor, index: Tensor, position_bias: Tensor) -> Tensor:
    """Pooled key of the members `source[index[r, m]]`, `[R, d]` in source's type.

    `source [N, 2 d]` holds key and gate side by side, `index [R, P]` int64, `position_bias [P, d]`. Softmax over the members per channel in
    fp32, rounded; products and sum in source's type.
    """
    return (host if host_rows.runs(source) else ref).pool_keys(source, index, position_bias)


def scores(query: Tensor, weight: Tensor, keys: Tensor) -> Tensor:
    """`sum_h weight[r, h] ReLU(query[r, h] . keys[p])`, fp32 `[n, pools]`.

    `query [n, H, d]` and `keys [pools, d]` of one sequence, pools a multiple of 512 (else ValueError), `weight [n, H]` fp32 with all scale
    factors in it. A score depends on its row and its key only.
    """
    if keys.shape[0] % SCORE_BLOCK:
        raise ValueError(f"{keys.shape[0]} pools; needed: a multiple of {SCORE_BLOCK}")
    return (host if host_rows.runs(query) else ref).scores(query, weight, keys, SCORE_BLOCK)


def replace_keys(keys: Tensor, rows: Tensor, chosen: Tensor, pool_places: Tensor, members: int) -> None:
    """Write the token places of the chosen pools' members, ascending by position, over the first keys of `rows` in `keys [R, K']`.

    `chosen [n, limit]` counts pools of one sequence, `pool_places` says where each lies; all int64.
    """
    (host if keys.is_cpu else ref).replace_keys(keys, rows, chosen, pool_places, members)


def select(values: Tensor, candidates: Tensor, count: int) -> Tensor:
    """The `count` largest of `values[r, : candidates[r]]` per row, as indices in ascending order, int64 `[n, count]`.

    Equal values: the lower index wins. Every row needs more than `count - 1` candidates; `candidates [n, 1]` int64.
    """
    return (host if host_rows.runs(values) else ref).select(values, candidates, count)
