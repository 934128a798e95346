"""The DFlash2 drafter in training form: many blocks of a batch at once. Knows the target's taps, embedding and ids, not its layers.

Source: the published drafter's computation (docs of the drafting format): context rows from taps, one block of 8 rows that see each
other, grouped dynamic short convolutions, a low-rank selector that scores successor given predecessor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from embedded.make.layers import Weights, lin, rms
from torch import Tensor, nn

from checkpoints.layout import drafter_slots
from lockstep.config.drafter import DrafterConfig


def initial(config: DrafterConfig, seed: int) -> dict[str, nn.Parameter]:
    """Fresh fp32 parameters."""
    generator = torch.Generator().manual_seed(seed)
    out: dict[str, nn.Parameter] = {}
    for slot in drafter_slots(config):
        normal = torch.randn(slot.shape, generator=generator)
        if slot.name.endswith("base_kernel"):
            value = torch.zeros(slot.shape)
            value[:, 0] = 1.0
        elif len(slot.shape) == 1:
            value = torch.ones(slot.shape)
        elif "codebook" in slot.name or "kernel_projection" in slot.name:
            value = normal * 0.02
        else:
            value = normal * ((0.3 if "down_proj" in slot.name or "o_proj" in slot.name else 1.0) / math.sqrt(slot.shape[1]))
        out[slot.name] = nn.Parameter(value)
    return out


def _rope(x: Tensor, position: Tensor, theta: float) -> Tensor:
    """`x [..., R, heads, d]`, `position [..., R]`; pairs are the two halves of d."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, device=x.device) / half)
    angle = position[..., None, None].float() * frequency
    a, b = x.float().split(half, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1).to(x.dtype)


def _short_conv(x: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
    """`x [A, R, D]`, `base [taps, D]`, `dynamic [A, R, taps, groups]`; rows before the block count as zero."""
    out = torch.zeros_like(x)
    for tap in range(len(base)):
        older = F.pad(x, (0, 0, tap, 0))[:, : x.shape[1]]
        kernel = base[tap].to(x.dtype) + dynamic[:, :, tap].repeat_interleave(x.shape[-1] // dynamic.shape[-1], -1)
        out = out + kernel * older
    return out


@dataclass(slots=True)
class Drafter:
    """Parameters and the functions over them."""

    config: DrafterConfig
    weights: Weights

    def _under(self, layer: int) -> Weights:
        prefix = f"layers.{layer}."
        return {name.removeprefix(prefix): value for name, value in self.weights.items() if name.startswith(prefix)}

    def _keys(self, rows: Tensor, position: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        c = self.config
        k = lin(rows, w, "self_attn.k_proj").unflatten(-1, (c.num_key_value_heads, c.head_dim))
        k = _rope(rms(k, w["self_attn.k_norm.weight"], c.rms_norm_eps), position, c.rope_theta)
        return k, lin(rows, w, "self_attn.v_proj").unflatten(-1, (c.num_key_value_heads, c.head_dim))

    def block(self, taps: Tensor, embed: Tensor, ids: Tensor, position: Tensor, anchors: Tensor) -> Tensor:
        """`taps [N, taps * D]`, `ids position [N]`, `anchors [A]` flat indices of pending tokens -> final states `[A, 7, D]`."""
        c, dtype = self.config, taps.dtype
        w0 = self.weights
        context = rms(F.linear(taps, w0["fc.weight"].to(dtype)), w0["hidden_norm.weight"], c.rms_norm_eps)
        tokens = torch.full((len(anchors), c.block_size), c.mask_token_id, device=ids.device)
        tokens[:, 0] = ids[anchors]
        x = F.embedding(tokens, embed).to(dtype)
        places = position[anchors][:, None] + torch.arange(c.block_size, device=ids.device)
        window = torch.arange(-c.sliding_window, 0, device=ids.device)
        index = (anchors[:, None] + window).clamp(min=0)
        exists = position[anchors][:, None] + window >= 0
        near = places[:, :, None] - (position[anchors][:, None] + window)[:, None, :] < c.sliding_window
        seen = exists[:, None, :] & near
        allowed = torch.cat([seen, seen.new_ones(len(anchors), c.block_size, c.block_size)], -1)
        for layer in range(c.num_hidden_layers):
            x = self._layer(x, self._under(layer), context, position, index, places, allowed)
        return rms(x, w0["norm.weight"], c.rms_norm_eps)[:, 1:]

    def _layer(self, x: Tensor, w: Weights, context: Tensor, position: Tensor, index: Tensor, places: Tensor, allowed: Tensor) -> Tensor:
        c = self.config
        keys, values = self._keys(context, position, w)

        def attention(y: Tensor) -> Tensor:
            q = lin(y, w, "self_attn.q_proj").unflatten(-1, (c.num_attention_heads, c.head_dim))
            q = _rope(rms(q, w["self_attn.q_norm.weight"], c.rms_norm_eps), places, c.rope_theta)
            own_k, own_v = self._keys(y, places, w)
            k, v = torch.cat([keys[index], own_k], 1), torch.cat([values[index], own_v], 1)
            k, v = (t.repeat_interleave(c.num_attention_heads // c.num_key_value_heads, 2) for t in (k, v))
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None])
            return lin(mixed.transpose(1, 2).flatten(2), w, "self_attn.o_proj")

        def feed_forward(y: Tensor) -> Tensor:
            return lin(F.silu(lin(y, w, "mlp.gate_proj")) * lin(y, w, "mlp.up_proj"), w, "mlp.down_proj")

        for norm, conv, part in (("input_layernorm", "attention_conv", attention), ("post_attention_layernorm", "mlp_conv", feed_forward)):
            y = rms(x, w[f"{norm}.weight"], c.rms_norm_eps)
            base = w[f"{conv}.base_kernel"]
            dynamic = lin(y, w, f"{conv}.kernel_projection").unflatten(-1, (2, base.shape[1], -1))
            inner = part(_short_conv(y, base[0], dynamic[:, :, 0]))
            x = x + _short_conv(inner, base[1], dynamic[:, :, 1])
        return x

    def edges(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Selector scores of every id: `hidden [A, 7, D]`, `previous [A, 7]` ids -> `[A, 7, V]`."""
        name = "candidate_selector."
        gate = lin(hidden, self.weights, name + "hidden_projection")
        before, after = (self.weights[f"{name}{side}_codebook"].to(hidden.dtype) for side in ("predecessor", "successor"))
        return F.linear(before[previous] * gate, after).float()

    def losses(self, hidden: Tensor, embed: Tensor, previous: Tensor, label: Tensor, weight: Tensor) -> Tensor:
        """Weighted cross entropy of the head alone and with the selector, labels `[A, 7]`, weights `[A, 7]`."""
        logits = F.linear(hidden, embed.to(hidden.dtype)).float()
        total = logits + self.edges(hidden, previous)
        each = [F.cross_entropy(t.flatten(0, 1), label.flatten(), reduction="none").view_as(weight) for t in (logits, total)]
        return ((0.5 * each[0] + each[1]) * weight).sum() / (weight.sum() + 1e-6)

    @torch.no_grad()
    def walk(self, hidden: Tensor, embed: Tensor, pending: Tensor) -> tuple[Tensor, Tensor]:
        """The greedy walk: drafted ids and softmax confidence over the candidates, both `[A, 7]`."""
        logits = F.linear(hidden, embed.to(hidden.dtype)).float()
        path, confidence, previous = [], [], pending
        for row in range(hidden.shape[1]):
            scores, ids = logits[:, row].topk(self.config.selector_top_k, -1)
            scores = scores + self.edges(hidden[:, row : row + 1], previous[:, None])[:, 0].gather(1, ids)
            best = scores.argmax(-1, keepdim=True)
            previous = ids.gather(1, best)[:, 0]
            path.append(previous)
            confidence.append(torch.softmax(scores, -1).gather(1, best)[:, 0])
        return torch.stack(path, 1), torch.stack(confidence, 1)
