"""Two operations of the training form that need kernels of their own on a GPU: the KDA recurrence and Sinkhorn scaling.

Each has a plain twin in torch (any device, differentiable by autograd) and a Triton form with a written backward pass. Knows no
model. The public functions `recurrence` and `sinkhorn` choose by device.
"""

# Triton is not installed where types are checked, and its programs are no Python functions.
# pyright: reportPossiblyUnboundVariable=false, reportIndexIssue=false, reportIncompatibleMethodOverride=false, reportMissingImports=false

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

with contextlib.suppress(ImportError):
    import triton
    import triton.language as tl

SINKHORN_BLOCK = 64


def plain_recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, keep: Tensor, rows: int) -> Tensor:
    """`q k v g [N, H, d]`, `beta [N, H]`, `keep [N]` fp32, N = rows x length; state is dropped where `keep` is 0. Returns `[N, H, d]`.

    g is the log of the decay per key channel. Source: KDA, one token at a time.
    """
    n, heads, d = q.shape
    cut = [t.view(rows, n // rows, *t.shape[1:]).unbind(1) for t in (q, k, v, g.exp() * keep.view(n, 1, 1), beta)]
    state = q.new_zeros(rows, heads, d, d)
    out = []
    for q_t, k_t, v_t, decay, beta_t in zip(*cut, strict=True):
        state = state * decay[..., None]
        delta = beta_t[..., None] * (v_t - (k_t[..., None] * state).sum(-2))
        state = state + k_t[..., None] * delta[..., None, :]
        out.append((q_t[..., None] * state).sum(-2))
    return torch.stack(out, 1).reshape(n, heads, d)


def plain_sinkhorn(y: Tensor, eps: float, steps: int) -> Tensor:
    """`y [N, h, h]` fp32 -> softmax over the last axis + eps, columns normalised, then `steps - 1` times rows and columns."""
    c = torch.softmax(y, -1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(steps - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


if "triton" in globals():

    @triton.jit
    def _kda_forward(q, k, v, g, beta, keep, out, states, length, H: tl.constexpr, D: tl.constexpr):
        row, head = tl.program_id(0) // H, tl.program_id(0) % H
        d = tl.arange(0, D)
        square = d[:, None] * D + d[None, :]
        m = tl.zeros([D, D], tl.float32)
        for t in range(length):
            n = row * length + t
            at = (n * H + head) * D + d
            q_t, k_t, v_t, g_t = tl.load(q + at), tl.load(k + at), tl.load(v + at), tl.load(g + at)
            beta_t, keep_t = tl.load(beta + n * H + head), tl.load(keep + n)
            tl.store(states + (n * H + head) * (D * D) + square, m)
            m = m * (tl.exp(g_t) * keep_t)[:, None]
            delta = beta_t * (v_t - tl.sum(m * k_t[:, None], 0))
            m = m + k_t[:, None] * delta[None, :]
            tl.store(out + at, tl.sum(m * q_t[:, None], 0))

    @triton.jit
    def _kda_backward(
        q, k, v, g, beta, keep, states, d_out, dq, dk, dv, dg, dbeta, length, H: tl.constexpr, D: tl.constexpr
    ):  # fmt: skip
        row, head = tl.program_id(0) // H, tl.program_id(0) % H
        d = tl.arange(0, D)
        square = d[:, None] * D + d[None, :]
        dm = tl.zeros([D, D], tl.float32)
        for back in range(length):
            n = row * length + length - 1 - back
            at = (n * H + head) * D + d
            q_t, k_t, v_t, g_t, do_t = tl.load(q + at), tl.load(k + at), tl.load(v + at), tl.load(g + at), tl.load(d_out + at)
            beta_t, keep_t = tl.load(beta + n * H + head), tl.load(keep + n)
            decay = tl.exp(g_t) * keep_t
            p = tl.load(states + (n * H + head) * (D * D) + square) * decay[:, None]
            gap = v_t - tl.sum(p * k_t[:, None], 0)
            delta = beta_t * gap
            m = p + k_t[:, None] * delta[None, :]
            tl.store(dq + at, tl.sum(m * do_t[None, :], 1))
            dm = dm + q_t[:, None] * do_t[None, :]
            d_delta = tl.sum(dm * k_t[:, None], 0)
            tl.store(dbeta + n * H + head, tl.sum(d_delta * gap, 0))
            dv_t = beta_t * d_delta
            tl.store(dv + at, dv_t)
            tl.store(dk + at, tl.sum(dm * delta[None, :] - p * dv_t[None, :], 1))
            dp = dm - k_t[:, None] * dv_t[None, :]
            tl.store(dg + at, tl.sum(dp * p, 1))
            dm = dp * decay[:, None]

    @triton.jit
    def _softmax(y, eps):
        e = tl.exp(y - tl.max(y, 2)[:, :, None])
        return e / tl.sum(e, 2)[:, :, None]

    @triton.jit
    def _scaled(c, eps, steps):
        c = c / (tl.sum(c, 1)[:, None, :] + eps)
        for _ in range(steps - 1):
            c = c / (tl.sum(c, 2)[:, :, None] + eps)
            c = c / (tl.sum(c, 1)[:, None, :] + eps)
        return c

    @triton.jit
    def _tile(N, B: tl.constexpr, h: tl.constexpr):
        n = tl.program_id(0) * B + tl.arange(0, B)
        i = tl.arange(0, h)
        return n[:, None, None] * (h * h) + i[None, :, None] * h + i[None, None, :], n[:, None, None] < N

    @triton.jit
    def _sinkhorn_forward(y, out, N, eps, steps, B: tl.constexpr, h: tl.constexpr):
        at, inside = _tile(N, B, h)
        c = _softmax(tl.load(y + at, mask=inside, other=0.0), eps) + eps
        tl.store(out + at, _scaled(c, eps, steps), mask=inside)

    @triton.jit
    def _sinkhorn_backward(y, d_out, dy, N, eps, steps, B: tl.constexpr, h: tl.constexpr):
        at, inside = _tile(N, B, h)
        p = _softmax(tl.load(y + at, mask=inside, other=0.0), eps)
        d = tl.load(d_out + at, mask=inside, other=0.0)
        # Sums of each step are computed again from the start: quadratic in `steps`, but no step has to be stored.
        for back in range(steps - 1):
            c = _scaled(p + eps, eps, steps - 1 - back)
            rows = tl.sum(c, 2)[:, :, None] + eps
            c = c / rows
            columns = tl.sum(c, 1)[:, None, :] + eps
            d = (d - tl.sum(d * c / columns, 1)[:, None, :]) / columns
            d = (d - tl.sum(d * c, 2)[:, :, None]) / rows
        c = p + eps
        columns = tl.sum(c, 1)[:, None, :] + eps
        d = (d - tl.sum(d * c / columns, 1)[:, None, :]) / columns
        tl.store(dy + at, p * (d - tl.sum(d * p, 2)[:, :, None]), mask=inside)


def launch_recurrence(tensors: list[Tensor], rows: int) -> tuple[Tensor, Tensor]:
    """Triton forward of `plain_recurrence` on `[q, k, v, g, beta, keep]`: output and the state before each token."""
    n, heads, d = tensors[0].shape
    out = torch.empty_like(tensors[0])
    states = out.new_empty(n * heads * d * d)
    _kda_forward[(rows * heads,)](*tensors, out, states, n // rows, H=heads, D=d, num_warps=1)
    return out, states


def launch_recurrence_backward(tensors: list[Tensor], states: Tensor, d_out: Tensor, rows: int) -> list[Tensor]:
    """Gradients of q, k, v, g and beta."""
    n, heads, d = tensors[0].shape
    grads = [torch.empty_like(t) for t in tensors[:5]]
    _kda_backward[(rows * heads,)](*tensors, states, d_out.contiguous(), *grads, n // rows, H=heads, D=d, num_warps=1)
    return grads


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: int, *tensors: Tensor) -> Tensor:
        kept = [t.contiguous() for t in tensors]
        out, states = launch_recurrence(kept, rows)
        ctx.rows = rows
        ctx.save_for_backward(*kept, states)
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, states = ctx.saved_tensors
        return None, *launch_recurrence_backward(tensors, states, d_out, ctx.rows), None


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, keep: Tensor, rows: int) -> Tensor:
    """See `plain_recurrence`."""
    if q.is_cuda:
        return _Recurrence.apply(rows, q, k, v, g, beta, keep)
    return plain_recurrence(q, k, v, g, beta, keep, rows)


@torch.library.custom_op("embedded::sinkhorn", mutates_args=())
def launch_sinkhorn(y: Tensor, eps: float, steps: int) -> Tensor:
    """Triton forward of `plain_sinkhorn`."""
    y = y.contiguous()
    out = torch.empty_like(y)
    grid = (-(-len(y) // SINKHORN_BLOCK),)
    _sinkhorn_forward[grid](y, out, len(y), eps, steps, B=SINKHORN_BLOCK, h=y.shape[-1], num_warps=2)
    return out


@torch.library.custom_op("embedded::sinkhorn_backward", mutates_args=())
def launch_sinkhorn_backward(y: Tensor, d_out: Tensor, eps: float, steps: int) -> Tensor:
    """Gradient of y."""
    y, d_out = y.contiguous(), d_out.contiguous()
    dy = torch.empty_like(y)
    grid = (-(-len(y) // SINKHORN_BLOCK),)
    _sinkhorn_backward[grid](y, d_out, dy, len(y), eps, steps, B=SINKHORN_BLOCK, h=y.shape[-1], num_warps=2)
    return dy


@launch_sinkhorn.register_fake
def _(y: Tensor, eps: float, steps: int) -> Tensor:
    return torch.empty_like(y, memory_format=torch.contiguous_format)


@launch_sinkhorn_backward.register_fake
def _(y: Tensor, d_out: Tensor, eps: float, steps: int) -> Tensor:
    return torch.empty_like(y, memory_format=torch.contiguous_format)


def _keep_input(ctx, inputs, output) -> None:
    y, ctx.eps, ctx.steps = inputs
    ctx.save_for_backward(y)


def _sinkhorn_grad(ctx, d_out: Tensor) -> tuple[Tensor, None, None]:
    return launch_sinkhorn_backward(ctx.saved_tensors[0], d_out, ctx.eps, ctx.steps), None, None


launch_sinkhorn.register_autograd(_sinkhorn_grad, setup_context=_keep_input)


def sinkhorn(y: Tensor, eps: float, steps: int) -> Tensor:
    """See `plain_sinkhorn`."""
    return launch_sinkhorn(y, eps, steps) if y.is_cuda else plain_sinkhorn(y, eps, steps)
