"""DSA layer: attention without positions over one latent per token, keys chosen by the indexer. Absorbed form on every path."""

from collections.abc import Callable

import torch
from torch import Tensor

from lockstep.config.model import TextConfig
from lockstep.kernels import fp8
from lockstep.kernels.cuda import Kernel
from lockstep.kernels.latent_attention import attend, many, paged
from lockstep.kernels.linear import linear, pack_rows
from lockstep.kernels.round import Round, Slice
from lockstep.layers.indexer import Indexer
from lockstep.layers.linear import Linear
from lockstep.layers.norm import RmsNorm
from lockstep.layers.params import Params
from lockstep.layers.rows import RowMemory, Rows, ScoredRows, TokenStore

SelectionHook = Callable[[int, Rows, list[tuple[ScoredRows, Tensor]]], None]


class LatentAttention:
    """A DSA layer of the trunk or of a drafter; which storage it uses comes with the call.

    Heads are this rank's; latents and the choice of keys are the same on every rank."""

    def __init__(self, params: Params, config: TextConfig) -> None:
        hidden, heads = config.hidden_size, params.share.part(config.num_attention_heads)
        latent, key, value = config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
        self.heads = heads
        self.scale = key**-0.5
        index = params.under("indexer")
        inputs = {
            "q_a_proj": config.q_lora_rank,
            "kv_a_proj_with_mqa": latent,
            "indexer.wk": config.index_head_dim,
            "indexer.weights_proj": config.index_n_heads,
        }
        matrices = [params.matrix(name, hidden, size) for name, size in inputs.items()]
        gate = index.tensor("index_kpool_compress_gate", config.index_head_dim, hidden)
        self.project = Linear([*matrices, gate])
        self.sizes = [*inputs.values(), config.index_head_dim]
        self.query_norm = RmsNorm(params, "q_a_layernorm", config.q_lora_rank, config.rms_norm_eps)
        self.latent_norm = RmsNorm(params, "kv_a_layernorm", latent, config.rms_norm_eps)
        queries = params.matrix("q_b_proj", config.q_lora_rank, heads * key)
        self.query = Linear([queries])
        expand = params.dense("kv_b_proj", latent, heads * (key + value)).view(heads, key + value, latent)
        self.absorb_key = pack_rows(expand[:, :key].transpose(1, 2))
        self.expand_value = pack_rows(expand[:, key:])
        self.out = Linear.load(params, heads * value, {"o_proj": hidden})
        self.indexer = Indexer(index, config)
        self.both = Linear([queries, index.matrix("wq_b", config.q_lora_rank, self.indexer.heads * self.indexer.width)])
        norms = (self.query_norm.weight, self.latent_norm.weight, *self.indexer.norm, self.indexer.position_bias)
        self.norms = paged.Norms(*norms, config.rms_norm_eps)
        self.exchange = params.exchange
        self.on_select: SelectionHook | None = None

    def __call__(self, x: Tensor, rows: Rows, memory: RowMemory | None, store: TokenStore) -> Tensor:
        """`x [R, D]` to `[R, D]`; stores latents and pooled keys of the rows first, then reads."""
        if rows.round is not None:
            return self._over_pages(x, rows.round, store)
        if rows.slice is not None:
            return self._over_pages(x, rows.slice.at, store, rows.slice)
        assert memory is not None
        query, latent, key, weight, gate = self.project(x).split_with_sizes(self.sizes, -1)
        query = self.query_norm(query)
        fp8.write(store.latents, rows.latent_places, self.latent_norm(latent))
        self.indexer.store(key, gate, rows, memory, store)
        keys = self._keys(query, weight, rows, store)
        absorbed = linear(self.query(query).view(rows.padded, self.heads, -1), self.absorb_key)
        context = attend(absorbed[: rows.count], store.latents, keys, rows.key_bias, self.scale)
        if rows.count < rows.padded:
            context = torch.cat([context, context.new_zeros(rows.padded - rows.count, *context.shape[1:])])
        return self.exchange.add(self.out(linear(context, self.expand_value).flatten(1)))

    def _over_pages(self, x: Tensor, at: Round, store: TokenStore, part: Slice | None = None) -> Tensor:
        kernels = self.kernels(store.latents.dtype is torch.uint8, x.device)
        projected = self.project(x)
        both = self.both(paged.prepare(projected, at, store.layer, self.norms, store.latents, store.pooled, kernels))
        chosen = self.indexer.choose(both, projected, at, store, part) if part or at.scores is not None else None
        width = both.shape[1] - self.indexer.heads * self.indexer.width
        absorbed = linear(both[:, :width].unflatten(1, (self.heads, -1)), self.absorb_key)
        if part is None:
            context = paged.attend(absorbed, at, store.latents, chosen, self.scale, kernels)
        else:
            context = many.attend(absorbed, store.latents, chosen, at.pages, part.first, part.count, self.scale, self.indexer.limit)
        return self.exchange.add(self.out(linear(context, self.expand_value).flatten(1)))

    def kernels(self, coded: bool, device: torch.device) -> dict[str, Kernel]:
        """What runs over pages between the products; `coded`: of fp8 rows."""
        return paged.load(paged.macros(self.norms, self.indexer.heads, self.heads, self.indexer.limit, coded), device)

    def _keys(self, query: Tensor, weight: Tensor, rows: Rows, store: TokenStore) -> Tensor:
        chosen = [(group, self.indexer.select(query, weight, group, store)) for group in rows.scored]
        if self.on_select is not None:
            self.on_select(store.layer, rows, chosen)
        if not chosen:
            return rows.keys
        keys = rows.keys.clone()
        for group, pools in chosen:
            self.indexer.replace(keys, pools, group)
        return keys
