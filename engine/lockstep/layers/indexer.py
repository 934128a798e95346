"""The key selector of a DSA layer: stores a pooled key per four tokens and picks pools for rows that have too many."""

import torch
from torch import Tensor

from lockstep.config.model import TextConfig
from lockstep.kernels import fp8, indexer
from lockstep.kernels.indexer import many, paged
from lockstep.kernels.rms_norm import layer_norm
from lockstep.kernels.round import Round, Slice
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

    def store(self, key: Tensor, gate: Tensor, rows: Rows, memory: RowMemory, store: TokenStore) -> None:
        """Take the rows' raw keys and gates `[R, d]`; write the pooled key of every pool that ends with a row."""
        raw = torch.cat([layer_norm(key, *self.norm, _KEY_NORM_EPS), gate], -1)
        source = memory.index_source(store.layer, raw)
        fp8.write(store.pooled, rows.pool_places, indexer.pool_keys(source, rows.member_index, self.position_bias))

    def select(self, latent: Tensor, weight: Tensor, group: ScoredRows, store: TokenStore) -> Tensor:
        """Pools each of the group's rows attends, ascending, `[n, limit]`. `latent [R, q_lora]` and `weight [R, heads]` of all rows."""
        query, weight = self.query(latent), weight.float() * self.scale
        if len(group.rows) < len(query):
            query, weight = query.index_select(0, group.rows), weight.index_select(0, group.rows)
        query = query.view(-1, self.heads, self.width)
        keys = fp8.read(store.pooled, group.pool_places, query.dtype)
        return indexer.select(indexer.scores(query, weight, keys), group.candidates, self.limit)

    def choose(self, queries: Tensor, projected: Tensor, at: Round, store: TokenStore, part: Slice | None = None) -> Tensor | None:
        """Pools of the rows of a step, or of a prompt's `part`; see `kernels.indexer`. Queries end their rows, weights the gate's."""
        own, pitch, coded = self.heads * self.width, projected.shape[1], store.pooled.dtype is torch.uint8
        places = (queries.shape[1], queries.shape[1] - own, pitch, pitch - self.width - self.heads)
        found = paged.macros(self.heads, self.width, self.limit, *places, coded)
        if part is not None:
            return many.choose(queries, projected, store.pooled, at.pages, part.first, part.count, self.scale, found)
        return paged.choose(queries, projected, store.pooled, at, self.scale, found)

    def replace(self, keys: Tensor, chosen: Tensor, group: ScoredRows) -> None:
        """Make the group's rows of `keys [R, K']` list the members of the chosen pools."""
        indexer.replace_keys(keys, group.rows, chosen, group.pool_places, self.pool)
