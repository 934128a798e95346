"""The vision tower in training form for pictures of one size. Knows tensors, not where placeholders stand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from embedded.make.layers import Weights, lin, rms, swiglu
from torch import Tensor

from lockstep.config.model import VisionConfig


def _angles(grid: int, v: VisionConfig, device: torch.device) -> Tensor:
    """`[grid * grid, head_dim]` rotation angles in block order."""
    merge, dim = v.spatial_merge_size, v.hidden_size // v.num_heads
    side = torch.arange(grid, device=device)
    rows, columns = torch.meshgrid(side, side, indexing="ij")
    order = [t.view(grid // merge, merge, grid // merge, merge).transpose(1, 2).flatten() for t in (rows, columns)]
    frequency = v.rope_theta ** (-torch.arange(0, dim // 2, 2, device=device) / (dim // 2))
    angle = torch.cat([t[:, None] * frequency for t in order], -1)
    return torch.cat([angle, angle], -1)


def _rotate(x: Tensor, angle: Tensor) -> Tensor:
    """`x [n, P, H, d]`, pairs are the two halves of d."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x.float() * angle.cos()[:, None] + turned.float() * angle.sin()[:, None]).to(x.dtype)


def _attention(x: Tensor, w: Weights, name: str, angle: Tensor, v: VisionConfig) -> Tensor:
    n, patches, _ = x.shape
    q, k, value = lin(x, w, name + "qkv").view(n, patches, 3, v.num_heads, -1).unbind(2)
    q = _rotate(rms(q, w[name + "q_norm.weight"], v.rms_norm_eps), angle)
    k = _rotate(rms(k, w[name + "k_norm.weight"], v.rms_norm_eps), angle)
    q, k, value = (t.transpose(1, 2) for t in (q, k, value))
    out = F.scaled_dot_product_attention(q, k, value)
    return lin(out.transpose(1, 2).reshape(n, patches, -1), w, name + "proj")


def tower(patches: Tensor, w: Weights, v: VisionConfig) -> Tensor:
    """`patches [n, P, values]` of n square pictures, block order, in the activation type -> `[n, P / 4, out]`."""
    angle = _angles(round(patches.shape[1] ** 0.5), v, patches.device)
    h = F.linear(patches, w["patch_embed.proj.weight"].flatten(1).to(patches.dtype), w["patch_embed.proj.bias"].to(patches.dtype))
    for block in range(v.depth):
        p = f"blocks.{block}."
        h = h + _attention(rms(h, w[p + "norm1.weight"], v.rms_norm_eps), w, p + "attn.", angle, v)
        h = h + swiglu(rms(h, w[p + "norm2.weight"], v.rms_norm_eps), w, p + "mlp.", v.swiglu_limit)
    h = rms(h, w["post_layernorm.weight"], v.rms_norm_eps)
    weight = w["downsample.weight"].flatten(2).transpose(1, 2).flatten(1).to(h.dtype)
    h = F.linear(h.reshape(len(h), -1, weight.shape[1]), weight, w["downsample.bias"].to(h.dtype))
    h = lin(h, w, "merger.proj").float()
    norm = "merger.post_projection_norm."
    h = F.gelu(F.layer_norm(h, h.shape[-1:], w[norm + "weight"], w[norm + "bias"], 1e-5)).to(patches.dtype)
    return swiglu(h, w, "merger.", v.swiglu_limit)
