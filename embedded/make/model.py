"""The model in training form: packed documents in, losses or hidden states out. Knows no data, no optimiser and no files.

Same mathematics as the engine, another arrangement: every token of a batch at once, weights under their published names (experts
of a layer stacked), pieces compiled separately so that row lengths share them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from embedded.make import attention, layers
from embedded.make.batch import NOT_A_LABEL, Batch
from embedded.make.data.pixels import patches
from embedded.make.kernels import recurrence
from embedded.make.layers import Weights, lin, rms
from embedded.make.vision import tower
from embedded.make.weights import TRUNK, VISUAL
from torch import Tensor

from lockstep.config.model import Attention, Mlp, ModelConfig, TextConfig


def _kda_open(streams: Tensor, w: Weights, position: Tensor, c: TextConfig) -> tuple[Tensor, ...]:
    u, post, comb = layers.split_streams(streams, w, "attn", c)
    return post, comb, *layers.kda_inputs(rms(u, w["input_layernorm.weight"], c.rms_norm_eps), w, position, c)


def _dsa_open(streams: Tensor, w: Weights, c: TextConfig) -> tuple[Tensor, ...]:
    u, post, comb = layers.split_streams(streams, w, "attn", c)
    return post, comb, *layers.dsa_inputs(rms(u, w["input_layernorm.weight"], c.rms_norm_eps), w, c)


def _feed_forward(streams: Tensor, w: Weights, c: TextConfig, sparse: bool) -> tuple[Tensor, Tensor | None]:
    u, post, comb = layers.split_streams(streams, w, "ffn", c)
    out, load = layers.mlp(rms(u, w["post_attention_layernorm.weight"], c.rms_norm_eps), w, c, sparse)
    return layers.merge_streams(streams, out, post, comb), load


def _kda_close(
    streams: Tensor, o: Tensor, gate: Tensor, post: Tensor, comb: Tensor, w: Weights, c: TextConfig, sparse: bool
) -> tuple[Tensor, Tensor | None]:
    return _feed_forward(layers.merge_streams(streams, layers.kda_output(o, gate, w, c), post, comb), w, c, sparse)


def _dsa_close(
    streams: Tensor, o: Tensor, post: Tensor, comb: Tensor, w: Weights, c: TextConfig, sparse: bool
) -> tuple[Tensor, Tensor | None]:
    return _feed_forward(layers.merge_streams(streams, lin(o.flatten(1), w, "self_attn.o_proj"), post, comb), w, c, sparse)


def _mtp_open(following: Tensor, hidden: Tensor, w: Weights, c: TextConfig) -> tuple[Tensor, ...]:
    both = [rms(following, w["enorm.weight"], c.rms_norm_eps), rms(hidden, w["hnorm.weight"], c.rms_norm_eps)]
    x = lin(torch.cat(both, -1), w, "eh_proj")
    return x, *layers.dsa_inputs(rms(x, w["input_layernorm.weight"], c.rms_norm_eps), w, c)


def _mtp_close(x: Tensor, o: Tensor, w: Weights, c: TextConfig) -> tuple[Tensor, Tensor]:
    x = x + lin(o.flatten(1), w, "self_attn.o_proj")
    out, load = layers.sparse_mlp(rms(x, w["post_attention_layernorm.weight"], c.rms_norm_eps), w, c)
    return rms(x + out, w["shared_head.norm.weight"], c.rms_norm_eps), load


def _score(hidden: Tensor, embed: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Loss fp32 and whether the best id is the label, both `[N]`, zero where there is no label."""
    logits = F.linear(hidden, embed.to(hidden.dtype)).float()
    good = label != NOT_A_LABEL
    loss = torch.logsumexp(logits, -1) - logits.gather(1, label.clamp(min=0)[:, None])[:, 0]
    return torch.where(good, loss, 0.0), (logits.argmax(-1) == label) & good


@dataclass(slots=True)
class Trunk:
    """What one trunk pass gives: `hidden [N, D]` after the final norm, `taps` (stream means after asked layers), the indexers' loss
    and per sparse layer the tokens each expert got."""

    hidden: Tensor
    taps: list[Tensor] = field(default_factory=list)
    indexer_loss: Tensor | float = 0.0
    loads: dict[str, Tensor] = field(default_factory=dict)


class Model:
    """Parameters and the functions over them. `dtype` is the activation type."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, compiled: bool = False) -> None:
        self.config, self.text, self.weights, self.dtype = config, config.text, weights, dtype

        def built(function: Callable) -> Callable:
            return torch.compile(function, dynamic=False) if compiled else function

        self.kda_open, self.dsa_open, self.mtp_open = built(_kda_open), built(_dsa_open), built(_mtp_open)
        self.kda_close, self.dsa_close, self.mtp_close = built(_kda_close), built(_dsa_close), built(_mtp_close)
        self.index_scores, self.attend, self.indexer_loss = map(built, (attention.index_scores, attention.attend, attention.indexer_loss))
        self.score = built(_score)
        self._local = {layer: self._under(f"{TRUNK}layers.{layer}.") for layer in range(self.text.num_hidden_layers + self.text.mtp_layers)}
        self._visual = self._under(VISUAL)

    def _under(self, prefix: str) -> Weights:
        return {name.removeprefix(prefix): value for name, value in self.weights.items() if name.startswith(prefix)}

    @property
    def embed(self) -> Tensor:
        return self.weights[TRUNK + "embed_tokens.weight"]

    def embedded(self, batch: Batch) -> Tensor:
        """`[N, D]` with the tower's rows at the placeholders."""
        x = F.embedding(batch.ids, self.embed).to(self.dtype)
        if batch.frames is None or batch.places is None or not len(batch.places) or self.config.vision is None:
            return x
        rows = tower(patches(batch.frames).to(self.dtype), self._visual, self.config.vision)
        places = batch.places[:, None] + torch.arange(rows.shape[1], device=x.device)
        return x.index_put((places.flatten(),), rows.flatten(0, 1))

    def sparse_attention(self, parts: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, Tensor]:
        """The six tensors of `DsaInputs` -> attention output `[N, H, dv]` and the indexer's loss."""
        q, k, v, iq, iw, pooled = parts
        document = batch.document.view(batch.rows, -1)
        scores = self.index_scores(iq, iw, pooled, batch.rows)
        candidates = attention.candidate_pools(document, batch.length, self.text.index_kpool)
        selected = attention.select_pools(scores.detach(), candidates, self.text.pools_per_row)
        out, mass = self.attend(q, k, v, selected, document)
        return out, self.indexer_loss(scores, candidates, mass) if torch.is_grad_enabled() else scores.new_zeros(())

    def trunk(self, batch: Batch, taps: tuple[int, ...] = ()) -> Trunk:
        """All trunk layers over a batch."""
        c, result = self.text, Trunk(torch.empty(0))
        keep = (batch.position > 0).float()
        streams = self.embedded(batch)[:, None].expand(-1, c.hc_mult, -1).contiguous()
        for layer in range(c.num_hidden_layers):
            w, sparse = self._local[layer], c.mlp_kinds[layer] is Mlp.SPARSE
            if c.attention_kinds[layer] is Attention.KDA:
                post, comb, q, k, v, g, beta, gate = self.kda_open(streams, w, batch.position, c)
                o = recurrence(q, k, v, g, beta, keep, batch.rows)
                streams, load = self.kda_close(streams, o, gate, post, comb, w, c, sparse)
            else:
                post, comb, *parts = self.dsa_open(streams, w, c)
                o, loss = self.sparse_attention(tuple(parts), batch)
                result.indexer_loss = result.indexer_loss + loss
                streams, load = self.dsa_close(streams, o, post, comb, w, c, sparse)
            if load is not None:
                result.loads[f"{TRUNK}layers.{layer}."] = load
            if layer in taps:
                result.taps.append(streams.float().mean(1).to(self.dtype))
        norm = self.weights[TRUNK + "norm.weight"]
        result.hidden = rms(streams.float().mean(1).to(self.dtype), norm, c.rms_norm_eps)
        return result

    def mtp(self, hidden: Tensor, following: Tensor, batch: Batch) -> Trunk:
        """One step of the MTP layer: `hidden [N, D]` of position t and ids `following [N]` of position t + 1 -> hidden for t + 2."""
        layer = self.text.num_hidden_layers
        w = self._local[layer]
        words = F.embedding(following, self.embed).to(self.dtype) * (batch.position > 0)[:, None]
        x, *parts = self.mtp_open(words, hidden, w, self.text)
        o, loss = self.sparse_attention(tuple(parts), batch)
        out, load = self.mtp_close(x, o, w, self.text)
        return Trunk(out, [], loss, {f"{TRUNK}layers.{layer}.": load})

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 `[R, V]`."""
        return F.linear(hidden, self.embed.to(hidden.dtype)).float()
