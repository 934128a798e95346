"""Plain PyTorch pooling, scoring and selection."""

import torch
from torch import Tensor

from lockstep.kernels.linear import STEP_ROWS, batched


def pool_keys(source: Tensor, index: Tensor, position_bias: Tensor) -> Tensor:
    rows, members = index.shape
    key, gate = source.index_select(0, index.view(-1)).view(rows, members, -1).chunk(2, -1)
    share = torch.softmax(gate.float() + position_bias, 1).to(source.dtype)
    return (share * key).sum(1)


def scores(query: Tensor, weight: Tensor, keys: Tensor, block: int) -> Tensor:
    """See `indexer.scores`. Rows run in tiles of 8 and keys in blocks of `block`, so every product has one shape."""
    rows, heads, width = query.shape
    padded = -(-rows // STEP_ROWS) * STEP_ROWS
    query = torch.cat([query, query.new_zeros(padded - rows, heads, width)]).view(-1, STEP_ROWS * heads, width)
    weight = torch.cat([weight, weight.new_zeros(padded - rows, heads)]).unsqueeze(-1)
    out = weight.new_empty(padded, keys.shape[0])
    for first in range(0, keys.shape[0], block):
        turned = keys[first : first + block].t().expand(query.shape[0], width, block)
        near = batched(query, turned).float().relu_().view(padded, heads, block)
        torch.sum(near.mul_(weight), 1, out=out[:, first : first + block])
    return out[:rows]


def replace_keys(keys: Tensor, rows: Tensor, chosen: Tensor, pool_places: Tensor, members: int) -> None:
    places = (pool_places[chosen].unsqueeze(-1) * members + torch.arange(members, device=keys.device)).flatten(1)
    keys[rows, : places.shape[1]] = places


def select(values: Tensor, candidates: Tensor, count: int) -> Tensor:
    """See `indexer.select`. The cut value is the same however a library orders ties; the rest is counting."""
    place = torch.arange(values.shape[1], device=values.device)
    values = values.masked_fill(place >= candidates, -torch.inf)
    cut = values.topk(count, dim=1).values[:, -1:]
    above, equal = values > cut, values == cut
    room = count - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= room))
    return chosen.nonzero()[:, 1].view(-1, count)
