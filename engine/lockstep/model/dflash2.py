"""The published block drafter DFlash2: guesses a block of tokens at once from states of the target's layers, then scores neighbours.

Its rows never reach a reply, so its products need no fixed tiles. Embedding and head are the target's. Source: arXiv 2602.06036 and the
published drafter's configuration and tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, scaled_dot_product_attention, silu

from lockstep.cache.saved import Saved, host_copy
from lockstep.config.drafter import DrafterConfig
from lockstep.layers.norm import RmsNorm
from lockstep.layers.params import Params

RowMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Target:
    """What the drafter borrows: `embed(ids [n]) -> [n, D]`, `head(rows [n, D]) -> [n, V]`; only ids below `vocabulary` are guessed."""

    embed: RowMap
    head: RowMap
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """For B streams and T drafts: the best `K` ids of each row, int64 `[B, T, K]`, their logits fp32, largest first, and what the
    selector adds to candidate c behind candidate p of the row before, `edges [B, T, p, c]` fp32. Behind the pending token all p agree.
    """

    tokens: Tensor
    logits: Tensor
    edges: Tensor


class ShortConv:
    """Causal convolution over the rows of a block, before and after a branch; kernels depend on the branch's input."""

    def __init__(self, params: Params, config: DrafterConfig) -> None:
        hidden, self.taps = config.hidden_size, config.conv_kernel_size
        self.groups, self.group = hidden // config.conv_group_size, config.conv_group_size
        self.base = params.tensor("base_kernel", 2, self.taps, hidden)
        self.kernel = params.tensor("kernel_projection.weight", 2 * self.taps * self.groups, hidden)

    def around(self, y: Tensor, branch: RowMap) -> Tensor:
        """`y [B, R, D]` through the first side, `branch`, and the second side."""
        dynamic = linear(y, self.kernel).view(*y.shape[:2], 2, self.taps, self.groups, 1)
        kernels = self.base.view(2, self.taps, self.groups, self.group) + dynamic
        return self._side(branch(self._side(y, kernels[:, :, 0])), kernels[:, :, 1])

    def _side(self, x: Tensor, kernels: Tensor) -> Tensor:
        blocks, rows, width = x.shape
        out = torch.zeros_like(x)
        for tap in range(self.taps):
            older = pad(x, (0, 0, tap, 0))[:, :rows]
            out += kernels[:, :, tap].reshape(blocks, rows, width) * older
        return out


class BlockLayer:
    """One drafter layer: attention over context rows and the whole block, and SwiGLU, each inside its convolution."""

    def __init__(self, params: Params, config: DrafterConfig) -> None:
        hidden, eps, self.width = config.hidden_size, config.rms_norm_eps, config.head_dim
        heads, kv = config.num_attention_heads * self.width, config.num_key_value_heads * self.width
        self.group = config.num_attention_heads // config.num_key_value_heads
        own, mlp = params.under("self_attn"), params.under("mlp")
        self.query, self.out = own.dense("q_proj", hidden, heads), own.dense("o_proj", heads, hidden)
        self.key_value = torch.cat([own.dense(f"{part}_proj", hidden, kv) for part in "kv"])
        self.query_norm, self.key_norm = (RmsNorm(own, f"{part}_norm", self.width, eps) for part in "qk")
        self.attention_norm = RmsNorm(params, "input_layernorm", hidden, eps)
        self.mlp_norm = RmsNorm(params, "post_attention_layernorm", hidden, eps)
        self.gate_up = torch.cat([mlp.dense(f"{part}_proj", hidden, config.intermediate_size) for part in ("gate", "up")])
        self.down = mlp.dense("down_proj", config.intermediate_size, hidden)
        self.attention_conv = ShortConv(params.under("attention_conv"), config)
        self.mlp_conv = ShortConv(params.under("mlp_conv"), config)

    def keys(self, rows: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Turned keys and values `[.., kv heads, d]` of rows `[.., D]`."""
        keys, values = linear(rows, self.key_value).unflatten(-1, (2, -1, self.width)).unbind(-3)
        return turn(self.key_norm(keys)), values

    def __call__(self, x: Tensor, turn: Turn, context: tuple[Tensor, Tensor], bias: Tensor) -> Tensor:
        """`x [B, R, D]` to the same; `context` keys and values `[B, C, kv heads, d]`, `bias [B, R, C + R]`."""
        x = x + self.attention_conv.around(self.attention_norm(x), lambda y: self._attend(y, turn, context, bias))
        return x + self.mlp_conv.around(self.mlp_norm(x), self._feed_forward)

    def _attend(self, y: Tensor, turn: Turn, context: tuple[Tensor, Tensor], bias: Tensor) -> Tensor:
        query = turn(self.query_norm(linear(y, self.query).unflatten(-1, (-1, self.width)))).transpose(1, 2)
        keys, values = (
            torch.cat([old, own], 1).repeat_interleave(self.group, 2).transpose(1, 2)
            for old, own in zip(context, self.keys(y, turn), strict=True)
        )
        mixed = scaled_dot_product_attention(query, keys, values, bias.unsqueeze(1))
        return linear(mixed.transpose(1, 2).flatten(2), self.out)

    def _feed_forward(self, y: Tensor) -> Tensor:
        gate, up = linear(y, self.gate_up).chunk(2, -1)
        return linear(silu(gate) * up, self.down)


class Turn:
    """Rotary positions, the two halves of a head as pairs, for rows at `positions [..]`."""

    def __init__(self, positions: Tensor, config: DrafterConfig, dtype: torch.dtype) -> None:
        half = config.head_dim // 2
        steps = torch.arange(half, dtype=torch.float64, device=positions.device) / half
        angle = positions.double().unsqueeze(-1) * config.rope_theta**-steps
        self.cos, self.sin = angle.cos().unsqueeze(-2).to(dtype), angle.sin().unsqueeze(-2).to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """`x [.., heads, d]`, same shape."""
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)


class BlockDrafter:
    """The drafter with a ring of `sliding_window` context rows per slot. Positions are those of the target's sequence."""

    def __init__(self, params: Params, config: DrafterConfig, target: Target, slots: int) -> None:
        hidden, eps, rank, taps = config.hidden_size, config.rms_norm_eps, config.selector_rank, len(config.target_layer_ids)
        self.config, self.target, self.device, self.dtype = config, target, params.device, params.dtype
        self.merge = params.dense("fc", taps * hidden, hidden)
        self.context_norm = RmsNorm(params, "hidden_norm", hidden, eps)
        self.norm = RmsNorm(params, "norm", hidden, eps)
        self.layers = [BlockLayer(params.under(f"layers.{index}"), config) for index in range(config.num_hidden_layers)]
        selector = params.under("candidate_selector")
        self.before, self.after = (selector.tensor(f"{name}_codebook", config.vocab_size, rank) for name in ("predecessor", "successor"))
        self.gate = selector.dense("hidden_projection", hidden, rank)
        ring = (config.num_hidden_layers, slots, config.sliding_window, config.num_key_value_heads, config.head_dim)
        self.ring = tuple(torch.zeros(ring, device=self.device, dtype=self.dtype) for _ in range(2))

    @torch.inference_mode()
    def absorb(self, rows: Items[tuple[int, int, Tensor]]) -> None:
        """Store context rows: `(slot, first position, taps [taps, n, D])` each. Rows that no later block can see are left out."""
        window = self.config.sliding_window
        rows = [(slot, start + max(0, taps.shape[1] - window), taps[:, -window:]) for slot, start, taps in rows]
        slots = self._index([slot for slot, _, taps in rows for _ in range(taps.shape[1])])
        positions = self._index([start + at for _, start, taps in rows for at in range(taps.shape[1])])
        merged = torch.cat([taps.transpose(0, 1).flatten(1) for _, _, taps in rows])
        context = self.context_norm(linear(merged, self.merge))
        turn = Turn(positions, self.config, self.dtype)
        for index, layer in enumerate(self.layers):
            for ring, values in zip(self.ring, layer.keys(context, turn), strict=True):
                ring[index, slots, positions % window] = values

    @property
    def slot_bytes(self) -> int:
        """Host bytes of what `save` returns."""
        return sum(ring[:, 0].numel() * ring.element_size() for ring in self.ring)

    @torch.inference_mode()
    def save(self, slot: int) -> Saved:
        """The ring of `slot`, `keys` and `values [layer, sliding_window, kv heads, d]`, on the host."""
        return {name: host_copy(ring[:, slot]) for name, ring in zip(("keys", "values"), self.ring, strict=True)}

    @torch.inference_mode()
    def restore(self, slot: int, saved: Saved) -> None:
        """Make the ring of `slot` what `save` returned."""
        for name, ring in zip(("keys", "values"), self.ring, strict=True):
            ring[:, slot] = saved[name].to(ring.device)

    @torch.inference_mode()
    def propose(self, slots: Items[int], starts: Items[int], pending: Items[int]) -> Candidates:
        """Candidates for the tokens behind `pending`, which stands at position `starts[b]` of the sequence in `slots[b]`."""
        hidden = self._block(self._index(slots), self._index(starts), pending)
        blocks, rows = hidden.shape[:2]
        logits = self.target.head(hidden.flatten(0, 1))[:, : self.target.vocabulary].float() * self.config.output_multiplier
        if self.config.logit_softcap:
            logits = self.config.logit_softcap * torch.tanh(logits / self.config.logit_softcap)
        best, tokens = (values.view(blocks, rows, -1) for values in logits.topk(min(self.config.selector_top_k, logits.shape[1])))
        first = self._index(pending).view(blocks, 1, 1).expand(blocks, 1, tokens.shape[2])
        earlier = self.before[torch.cat([first, tokens[:, :-1]], 1)] * linear(hidden, self.gate).unsqueeze(2)
        return Candidates(tokens, best, torch.matmul(earlier, self.after[tokens].transpose(2, 3)).float())

    def _block(self, slots: Tensor, starts: Tensor, pending: Items[int]) -> Tensor:
        """Final states of all rows but the pending one, `[B, R - 1, D]`. All rows run: they see each other."""
        config, rows = self.config, self.config.block_size
        ids = self._index([[token] + [config.mask_token_id] * (rows - 1) for token in pending])
        x = self.target.embed(ids.flatten()).view(*ids.shape, -1) * config.input_embedding_scale
        positions = starts.unsqueeze(1) + torch.arange(rows, device=self.device)
        turn, (bias, filled) = Turn(positions, config, self.dtype), self._mask(starts, positions)
        for index, layer in enumerate(self.layers):
            context = self.ring[0][index, slots, :filled], self.ring[1][index, slots, :filled]
            x = layer(x, turn, context, bias)
        return self.norm(x)[:, 1:]

    def _mask(self, starts: Tensor, positions: Tensor) -> tuple[Tensor, int]:
        """Bias `[B, R, C + R]` over the first C ring places and the block, and C. A place holds the newest position that falls on it."""
        window, rows = self.config.sliding_window, positions.shape[1]
        filled = min(window, int(starts.max()))
        place = torch.arange(filled, device=self.device)
        held = starts.unsqueeze(1) - 1 - (starts.unsqueeze(1) - 1 - place) % window
        unseen = (held.unsqueeze(1) < 0) | (positions.unsqueeze(2) - held.unsqueeze(1) >= window)
        bias = torch.zeros(len(starts), rows, filled + rows, device=self.device, dtype=self.dtype)
        bias[:, :, :filled].masked_fill_(unseen, -torch.inf)
        return bias, filled

    def _index(self, values: Items[int] | Items[Items[int]]) -> Tensor:
        return torch.tensor(values, device=self.device)
