"""Plain PyTorch hyper-connection mixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels.linear import batched

if TYPE_CHECKING:
    from lockstep.kernels.hyper_connection import Site


def split(streams: Tensor, y: Tensor, at: Site) -> tuple[Tensor, Tensor, Tensor]:
    """From the site's `y [R, h (h + 2)]` (scaled and shifted) to branch input, post and comb."""
    rows, count, _ = streams.shape
    weights = torch.addcmul(at.shift, torch.sigmoid(y[:, : 2 * count]), at.gain)
    mix = torch.softmax(y[:, 2 * count :].view(rows, count, count), -1)
    mix = mix.view(rows, count * count).add_(at.eps)
    comb = sinkhorn(mix, at)
    u = batched(weights[:, :count].unsqueeze(1), streams.float()).squeeze(1)
    kind = streams.dtype
    return u.to(kind), weights[:, count:].to(kind), comb.view(rows, count, count).to(kind)


def sinkhorn(comb: Tensor, at: Site) -> Tensor:
    """Alternate column and row normalisation of `comb [R, h h]`, columns first and last, in place."""
    tile = at.rows.tiles[comb.shape[0]]
    sums = torch.empty_like(comb[:tile])
    adders = (at.columns.weight, at.rows.weight) * at.sinkhorn
    for part in comb.split(tile):
        for adder in adders[:-1]:
            torch.addmm(at.eps, part, adder, out=sums)
            part.div_(sums)
    return comb


def merge(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    mixed = batched(comb.transpose(1, 2), streams)
    return mixed.addcmul_(post.unsqueeze(2), branch.unsqueeze(1))


def collapse(streams: Tensor) -> Tensor:
    return streams.mean(1, dtype=torch.float32).to(streams.dtype)
