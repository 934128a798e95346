"""The layers in training form: N tokens at once, documents packed in rows, gradients by autograd. Knows tensors, not their files.

Every function takes the layer's weights by their published local names. Matrix products run in the activation type, everything
the published precision list keeps in fp32 stays there. Sources: the published model description; DeepSeek sparse attention for
how the indexer learns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from embedded.make.kernels import sinkhorn
from torch import Tensor

from lockstep.config.model import TextConfig

Weights = dict[str, Tensor]


def lin(x: Tensor, w: Weights, name: str) -> Tensor:
    bias = w.get(name + ".bias")
    return F.linear(x, w[name + ".weight"].to(x.dtype), None if bias is None else bias.to(x.dtype))


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def swiglu(x: Tensor, w: Weights, name: str, limit: float) -> Tensor:
    return lin(gated(lin(x, w, name + "gate_proj"), lin(x, w, name + "up_proj"), limit), w, name + "down_proj")


def split_streams(streams: Tensor, w: Weights, kind: str, c: TextConfig) -> tuple[Tensor, Tensor, Tensor]:
    """`[N, h, D]` -> branch input `[N, D]`, post `[N, h]`, comb `[N, h, h]` of one hyper-connection site."""
    h, flat = c.hc_mult, streams.flatten(1)
    scale, base = w[f"hc_{kind}_scale"], w[f"hc_{kind}_base"]
    y = F.linear(flat, w[f"hc_{kind}_fn"].to(flat.dtype)).float()
    y = y * torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + c.rms_norm_eps)
    pre = torch.sigmoid(y[:, :h] * scale[0] + base[:h]) + c.hc_eps
    post = 2 * torch.sigmoid(y[:, h : 2 * h] * scale[1] + base[h : 2 * h])
    comb = sinkhorn((y[:, 2 * h :] * scale[2] + base[2 * h :]).view(-1, h, h), c.hc_eps, c.hc_sinkhorn_iters)
    u = (pre[:, :, None] * streams.float()).sum(1).to(streams.dtype)
    return u, post.to(streams.dtype), comb.to(streams.dtype)


def merge_streams(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    mixed = (comb.float()[:, :, :, None] * streams.float()[:, :, None, :]).sum(1)
    return (post.float()[:, :, None] * branch.float()[:, None, :] + mixed).to(streams.dtype)


def route(x: Tensor, w: Weights, c: TextConfig) -> tuple[Tensor, Tensor]:
    """Routing weights `[N, E]` (zero where not chosen) and the number of tokens each expert got `[E]`."""
    score = torch.sigmoid(F.linear(x.float(), w["mlp.gate.weight"]))
    left = (score + w["mlp.gate.e_score_correction_bias"]).detach()
    chosen = torch.zeros_like(left)
    for _ in range(c.num_experts_per_tok):
        one = F.one_hot(left.argmax(-1), left.shape[-1]).to(left.dtype)
        chosen = chosen + one
        left = left.masked_fill(one > 0, -1e9)
    picked = score * chosen
    return picked / (picked.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor, chosen.sum(0)


def sparse_mlp(x: Tensor, w: Weights, c: TextConfig) -> tuple[Tensor, Tensor]:
    """All experts run on all tokens; the routing weight is zero for most. At this width that beats grouping."""
    weight, load = route(x, w, c)
    gate, up, down = (w[f"mlp.experts.{part}_proj"].to(x.dtype) for part in ("gate", "up", "down"))
    experts, width, hidden = gate.shape
    inner = gated(F.linear(x, gate.reshape(-1, hidden)), F.linear(x, up.reshape(-1, hidden)), c.swiglu_limit)
    inner = inner.view(-1, experts, width) * weight[:, :, None].to(x.dtype)
    out = F.linear(inner.view(-1, experts * width), down.permute(1, 0, 2).reshape(hidden, experts * width))
    return out + swiglu(x, w, "mlp.shared_experts.", c.swiglu_limit), load


def mlp(x: Tensor, w: Weights, c: TextConfig, sparse: bool) -> tuple[Tensor, Tensor | None]:
    if sparse:
        return sparse_mlp(x, w, c)
    return swiglu(x, w, "mlp.", c.swiglu_limit), None


def _short_conv(x: Tensor, taps: Tensor, position: Tensor) -> Tensor:
    """`x [N, C]` fp32, `taps [C, K]`; rows before the document count as zero."""
    kernel = taps.shape[1]
    out = x * taps[:, -1]
    for back in range(1, kernel):
        older = F.pad(x[:-back], (0, 0, back, 0)) * (position >= back)[:, None]
        out = out + older * taps[:, kernel - 1 - back]
    return F.silu(out)


def kda_inputs(x: Tensor, w: Weights, position: Tensor, c: TextConfig) -> tuple[Tensor, ...]:
    """`x [N, D]` -> q, k, v, g `[N, H, d]`, beta `[N, H]`, all fp32, and the output gate `[N, H, d]`."""
    shape = (-1, c.linear_num_heads, c.linear_head_dim)
    parts = []
    for name in "qkv":
        raw = lin(x, w, f"self_attn.{name}_proj").float()
        parts.append(_short_conv(raw, w[f"self_attn.{name}_conv1d.weight"][:, 0], position).to(x.dtype).float().view(shape))
    q, k, v = parts
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * c.linear_head_dim**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    f = lin(lin(x, w, "self_attn.f_a_proj"), w, "self_attn.f_b_proj").float() + w["self_attn.dt_bias"]
    g = c.linear_gate_lower_bound * torch.sigmoid(w["self_attn.A_log"].exp()[:, None] * f.view(shape))
    beta = torch.sigmoid(lin(x, w, "self_attn.b_proj")).float()
    gate = lin(lin(x, w, "self_attn.g_a_proj"), w, "self_attn.g_b_proj").view(shape)
    return q, k, v, g, beta, gate


def kda_output(o: Tensor, gate: Tensor, w: Weights, c: TextConfig) -> Tensor:
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + c.rms_norm_eps) * w["self_attn.o_norm.weight"]
    return lin((o * torch.sigmoid(gate.float())).flatten(1).to(gate.dtype), w, "self_attn.o_proj")


@dataclass(frozen=True, slots=True)
class DsaInputs:
    """`q k v [N, H, d]`; indexer: `iq [N, Hi, di]`, `iw [N, Hi]`, `pooled [N / P, di]`, cut off from the trunk's gradient."""

    q: Tensor
    k: Tensor
    v: Tensor
    iq: Tensor
    iw: Tensor
    pooled: Tensor


def dsa_inputs(x: Tensor, w: Weights, c: TextConfig) -> tuple[Tensor, ...]:
    """The six tensors of `DsaInputs`."""
    n, heads = len(x), c.num_attention_heads
    ql = rms(lin(x, w, "self_attn.q_a_proj"), w["self_attn.q_a_layernorm.weight"], c.rms_norm_eps)
    q = lin(ql, w, "self_attn.q_b_proj").view(n, heads, c.qk_nope_head_dim)
    latent = rms(lin(x, w, "self_attn.kv_a_proj_with_mqa"), w["self_attn.kv_a_layernorm.weight"], c.rms_norm_eps)
    k, v = lin(latent, w, "self_attn.kv_b_proj").view(n, heads, -1).split([c.qk_nope_head_dim, c.v_head_dim], -1)
    return q, k, v, *_indexer_inputs(x.detach(), ql.detach(), {n.removeprefix("self_attn.indexer."): t for n, t in w.items()}, c)


def _indexer_inputs(x: Tensor, ql: Tensor, w: Weights, c: TextConfig) -> tuple[Tensor, Tensor, Tensor]:
    dim, pool = c.index_head_dim, c.index_kpool
    key = F.layer_norm(lin(x, w, "wk").float(), (dim,), w["k_norm.weight"], w["k_norm.bias"], 1e-6).to(x.dtype)
    gate = F.linear(x, w["index_kpool_compress_gate"].to(x.dtype))
    share = torch.softmax(gate.float().view(-1, pool, dim) + w["index_kpool_compress_ape"], 1).to(x.dtype)
    pooled = (share * key.view(-1, pool, dim)).sum(1)
    iq = lin(ql, w, "wq_b").view(len(x), c.index_n_heads, dim) * dim**-0.5
    return iq, lin(x, w, "weights_proj").float() * c.index_n_heads**-0.5, pooled
