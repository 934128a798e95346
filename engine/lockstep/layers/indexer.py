"""The key selector of a DSA layer: stores a pooled key per four tokens and picks pools for rows that have too many."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.config.model import TextConfig
from lockstep.kernels import fp8, indexer
from lockstep.kernels.rms_norm import layer_norm
from lockstep.layers.linear import Linear
from lockstep.layers.params import Params
from lockstep.layers.rows import RowMemory, Rows, ScoredRows, TokenStore

_KEY_NORM_EPS = 1e-6


class Indexer:
    """Parameters under `self_attn.indexer.`; the projections of its input are part of the attention layer's first product."""

    def __init__(self, params: Params, config: TextConfig) -> None:
        self.heads, self.width, self.pool = config.index_n_heads, config.index_head_dim, config.index_kpool
        self.limit = config.pools_per_row
        self.query = Linear.load(params, config.q_lora_rank, {"wq_b": self.heads * self.width})
        self.norm = params.tensor("k_norm.weight", self.width), params.tensor("k_norm.bias", self.width)
        self.position_bias = params.float("index_kpool_compress_ape", self.pool, self.width)
        self.scale = (self.heads * self.width) ** -0.5
        self.members = torch.arange(self.pool, device=params.device)

    def store(self, key: Tensor, gate: Tensor, rows: Rows, memory: RowMemory, store: TokenStore) -> None:
        """Take the rows' raw keys and gates `[R, d]`; write the pooled key of every pool that ends with a row."""
        raw = torch.cat([layer_norm(key, *self.norm, _KEY_NORM_EPS), gate], -1)
        source = memory.index_source(store.layer, raw)
        fp8.write(store.pooled, rows.pool_places, indexer.pool_keys(source, rows.member_index, self.position_bias))

    def select(self, latent: Tensor, weight: Tensor, group: ScoredRows, store: TokenStore) -> Tensor:
        """Pools each of the group's rows attends, ascending, `[n, limit]`. `latent [R, q_lora]` and `weight [R, heads]` of all rows."""
        query = self.query(latent).index_select(0, group.rows).view(-1, self.heads, self.width)
        weight = weight.index_select(0, group.rows).float() * self.scale
        keys = fp8.read(store.pooled, group.pool_places, query.dtype)
        return indexer.select(indexer.scores(query, weight, keys), group.candidates, self.limit)

    def key_places(self, chosen: Tensor, group: ScoredRows) -> Tensor:
        """Token places of the chosen pools' members, ascending by position, `[n, limit P]`."""
        return (group.pool_places[chosen].unsqueeze(-1) * self.pool + self.members).flatten(1)
