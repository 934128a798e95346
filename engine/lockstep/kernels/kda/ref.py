"""Plain PyTorch delta attention, stepwise and in chunk form."""

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

# q, k, v, log decay, beta.
RowInputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_BLOCK = 16
_LARGEST_EXPONENT = 45.0
_UNIT_EPS = 1e-6


def inputs(mixed: Tensor, decay_input: Tensor, rate: Tensor, offset: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads, width = offset.shape
    q, k, v = mixed.float().view(-1, 3, heads, width).unbind(1)
    log_decay = torch.sigmoid((decay_input.float().view(-1, heads, width) + offset).mul_(rate)).mul_(bound)
    return _unit(q).mul_(width**-0.5), _unit(k), v, log_decay


def beta(x: Tensor) -> Tensor:
    return torch.sigmoid(x).float().unsqueeze(-1)


def _unit(x: Tensor) -> Tensor:
    return x * (x * x).sum(-1, keepdim=True).add_(_UNIT_EPS).rsqrt_()


def step_window(state: Tensor, base: Tensor, scratch: Tensor, rows: RowInputs, active: Rows[int], out: Tensor) -> None:
    q, k, v, log_decay, beta = rows
    decay = log_decay.exp().unsqueeze(-1)
    q, k = q.unsqueeze(-1), k.unsqueeze(-1)
    current = state.index_select(0, base)
    first = 0
    for count in active:
        part, at = current[:count], slice(first, first + count)
        part.mul_(decay[at])
        # exact: sums over the key axis add plain products in channel order, whatever the number of sequences.
        error = (v[at] - (part * k[at]).sum(-2)).mul_(beta[at])
        part.addcmul_(k[at], error.unsqueeze(-2))
        torch.sum(part * q[at], -2, out=out[at])
        first += count
    state.index_copy_(0, scratch, current)


def prompt_tile(state: Tensor, rows: RowInputs) -> tuple[Tensor, Tensor]:
    q, k, v, log_decay, beta = (t.transpose(0, 1) for t in rows)  # [H, 64, d]
    count = q.shape[1]
    # exact: running sums reach -320 where one fp32 step is 3e-5; in fp64 the differences taken below are exact to fp32.
    total = log_decay.double().cumsum(1)
    from_start, to_end = total.float().exp(), (total[:, -1:] - total).float().exp()
    key_scores, query_scores = _decayed_products(q, k, total)
    system = (key_scores * beta).tril_(-1)
    right = torch.cat([v, k * from_start], -1) * beta
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, weights = solved.split([v.shape[-1], k.shape[-1]], -1)
    values = values - torch.bmm(weights, state)
    out = torch.bmm(q * from_start, state).baddbmm_(query_scores.tril_(), values)
    after = state * from_start[:, count - 1].unsqueeze(-1)
    after = after.baddbmm_((k * to_end).transpose(1, 2), values)
    return out.transpose(0, 1), after


def _decayed_products(q: Tensor, k: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """`sum_c x_ic k_jc exp(G_ic - G_jc)` for x = k and x = q, `[H, 64, 64]`; entries above the diagonal hold no meaning.

    Factored per block of 16 rows i around the block's middle row, so that neither factor leaves fp32.
    """
    heads, count, width = k.shape
    blocks = count // _BLOCK
    middle = total[:, _BLOCK // 2 - 1 :: _BLOCK]  # [H, blocks, d]
    rise = (total.view(heads, blocks, _BLOCK, width) - middle.unsqueeze(2)).float().exp()
    fall = (middle.unsqueeze(2) - total.unsqueeze(1)).float().clamp_(max=_LARGEST_EXPONENT).exp_()  # [H, blocks, 64, d]
    right = (k.unsqueeze(1) * fall).flatten(0, 1).transpose(1, 2)
    left = torch.stack([k, q]).view(2, heads, blocks, _BLOCK, width) * rise
    left = left.permute(1, 2, 0, 3, 4).reshape(heads * blocks, 2 * _BLOCK, width)
    product = torch.bmm(left, right).view(heads, blocks, 2, _BLOCK, count)
    key_scores, query_scores = product.permute(2, 0, 1, 3, 4).reshape(2, heads, count, count)
    return key_scores, query_scores
