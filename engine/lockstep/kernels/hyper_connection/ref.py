"""Plain PyTorch hyper-connection mixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels.linear import Packed, batched

if TYPE_CHECKING:
    from lockstep.kernels.hyper_connection import Site


def split(streams: Tensor, y: Tensor, at: Site) -> tuple[Tensor, Tensor, Tensor]:
    """From the site's `y [R, h (h + 2)]` (scaled and shifted) to branch input, post and comb."""
    rows, count, _ = streams.shape
    weights = torch.addcmul(at.shift, torch.sigmoid(y[:, : 2 * count]), at.gain)
    mix = torch.softmax(y[:, 2 * count :].view(rows, count, count), -1)
    comb = sinkhorn(mix.view(rows, count * count).add_(at.eps), at)
    u = batched(weights[:, :count].unsqueeze(1), streams.float()).squeeze(1)
    kind = streams.dtype
    return u.to(kind), weights[:, count:].to(kind), comb.view(rows, count, count).to(kind)


def sinkhorn(comb: Tensor, at: Site) -> Tensor:
    """Alternate column and row normalisation of `comb [R, h h]`, columns first and last, in place."""
    sums = torch.empty_like(comb)
    _normalise(comb, sums, at.columns, at.eps)
    for _ in range(at.sinkhorn - 1):
        _normalise(comb, sums, at.rows, at.eps)
        _normalise(comb, sums, at.columns, at.eps)
    return comb


def _normalise(comb: Tensor, sums: Tensor, adder: Packed, eps: Tensor) -> None:
    tile = adder.tiles[comb.shape[0]]
    if tile == comb.shape[0]:
        torch.addmm(eps, comb, adder.weight, out=sums)
    else:
        for row in range(0, comb.shape[0], tile):
            torch.addmm(eps, comb[row : row + tile], adder.weight, out=sums[row : row + tile])
    comb.div_(sums)


def merge(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """See `hyper_connection.merge`."""
    mixed = batched(comb.transpose(1, 2), streams)
    return mixed.addcmul_(post.unsqueeze(2), branch.unsqueeze(1))


def collapse(streams: Tensor) -> Tensor:
    """See `hyper_connection.collapse`."""
    return streams.mean(1, dtype=torch.float32).to(streams.dtype)
