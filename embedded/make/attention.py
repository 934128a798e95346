"""Sparse attention over packed rows: which pools each token selects, attention to them, and what the indexer learns from it.

Knows tensors only. Scores are written out in full: rows are short, and the indexer's target needs the probabilities anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEGATIVE = -1e30


def index_scores(iq: Tensor, iw: Tensor, pooled: Tensor, rows: int) -> Tensor:
    """`iq [N, Hi, di]`, `iw [N, Hi]`, `pooled [N / P, di]` -> fp32 scores `[rows, L, L / P]`."""
    n, heads, dim = iq.shape
    raw = torch.bmm(iq.reshape(rows, n // rows * heads, dim), pooled.view(rows, -1, dim).transpose(1, 2))
    raw = raw.view(rows, n // rows, heads, -1)
    return (torch.relu(raw.float()) * iw.view(rows, -1, heads, 1)).sum(2)


def candidate_pools(document: Tensor, length: int, pool: int) -> Tensor:
    """`document [rows, L]` -> bool `[rows, L, L / P]`: complete pools of the token's own document."""
    t = torch.arange(length, device=document.device)
    last = t[pool - 1 :: pool]
    return (last[None, :] <= t[:, None]) & (document[:, :, None] == document[:, None, ::pool])


@torch.no_grad()
def select_pools(scores: Tensor, candidates: Tensor, count: int) -> Tensor:
    """The `count` best candidates of each token (all, if there are fewer), bool of the scores' shape."""
    if scores.shape[-1] <= count:
        return candidates
    best = scores.masked_fill(~candidates, NEGATIVE).topk(count, -1).indices
    return torch.zeros_like(candidates).scatter_(-1, best, True) & candidates


def attend(q: Tensor, k: Tensor, v: Tensor, selected: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
    """`q k v [N, H, d]`, `selected [rows, L, pools]`, `document [rows, L]` -> output `[N, H, dv]` and, without gradient, the mean
    over heads of the dense attention's mass on each pool, fp32 `[rows, L, pools]`."""
    rows, length, pools = selected.shape
    heads, pool = q.shape[1], length // pools
    q, k, v = (t.view(rows, length, heads, -1).transpose(1, 2) for t in (q, k, v))
    scores = torch.matmul(q, k.transpose(2, 3)).float() * q.shape[-1] ** -0.5
    t = torch.arange(length, device=q.device)
    visible = (t[None, :] <= t[:, None]) & (document[:, :, None] == document[:, None, :])
    tail = (t[:, None] // pool == t[None, :] // pool) & (t[:, None] % pool != pool - 1)
    allowed = visible & (tail | selected.repeat_interleave(pool, -1))
    share = torch.softmax(scores.masked_fill(~allowed[:, None], NEGATIVE), -1).to(v.dtype)
    out = torch.matmul(share, v).transpose(1, 2).reshape(rows * length, heads, -1)
    with torch.no_grad():
        dense = torch.softmax(scores.detach().masked_fill(~visible[:, None], NEGATIVE), -1)
        mass = dense.view(rows, heads, length, pools, pool).sum(-1).mean(1)
    return out, mass


def indexer_loss(scores: Tensor, candidates: Tensor, mass: Tensor) -> Tensor:
    """Mean over tokens of KL(attention's mass on the candidates || softmax of their scores)."""
    target = mass * candidates
    target = target / (target.sum(-1, keepdim=True) + 1e-9)
    logs = torch.log_softmax(scores.masked_fill(~candidates, NEGATIVE), -1)
    gap = torch.where(target > 0, target * ((target + 1e-12).log() - logs), 0.0)
    return gap.sum(-1).mean()
