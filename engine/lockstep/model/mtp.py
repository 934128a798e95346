"""The MTP layer: guesses the token after next from the trunk's output and the next token. Its own latents and index keys, no streams.

Its rows never reach a reply, so their bits need not be those of serial rows. Source: the published layer `num_hidden_layers`.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.cache.window import PromptTile, StepWindow
from lockstep.config.model import Attention, TextConfig
from lockstep.kernels import host
from lockstep.kernels.linear import PROMPT_ROWS, STEP_ROWS
from lockstep.layers.embedding import Embedding
from lockstep.layers.exchange import ALONE, Exchange
from lockstep.layers.latent_attention import LatentAttention
from lockstep.layers.linear import Linear
from lockstep.layers.mlp import SparseMlp
from lockstep.layers.norm import RmsNorm
from lockstep.layers.params import Params, WeightSource
from lockstep.layers.rows import RowMemory, Rows, TokenStore
from lockstep.model.glm import TRUNK, rank_params
from lockstep.model.rows import RowPlanner

Window = tuple[Sequence, Items[int], Tensor]


class MtpLayer:
    """One layer with memory for `slots` sequences, stored under the trunk's page numbers. The row at position t holds token t + 1.

    `kv` is the form of its token pool, see `TokenPool`.
    """

    def __init__(self, params: Params, config: TextConfig, embedding: Embedding, pages: int, slots: int, kv: str = "bf16") -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        own = replace(config, num_hidden_layers=1, attention_kinds=(Attention.DSA,))
        self.embedding = embedding
        self.token_norm = RmsNorm(params, "enorm", hidden, eps)
        self.hidden_norm = RmsNorm(params, "hnorm", hidden, eps)
        self.join = Linear.load(params, 2 * hidden, {"eh_proj": hidden})
        self.attention_norm = RmsNorm(params, "input_layernorm", hidden, eps)
        self.attention = LatentAttention(params.under("self_attn"), config)
        self.mlp_norm = RmsNorm(params, "post_attention_layernorm", hidden, eps)
        self.mlp = SparseMlp(params.under("mlp"), config)
        self.norm = RmsNorm(params, "shared_head.norm", hidden, eps)
        self.hidden = hidden
        self.pool = TokenPool(own, pages, params.device, params.dtype, kv)
        self.slots = StateSlots(own, slots, params.device, params.dtype)
        self._planner = RowPlanner(own, self.pool)
        self._store = TokenStore(self.pool.latents[0], self.pool.pooled[0], 0)

    @classmethod
    def load(
        cls,
        weights: WeightSource,
        config: TextConfig,
        embedding: Embedding,
        pages: int,
        slots: int,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
        exchange: Exchange = ALONE,
        kv: str = "bf16",
    ) -> MtpLayer:
        """The layer of a checkpoint. Raises ValueError if the checkpoint has none."""
        if not config.mtp_layers:
            raise ValueError("num_nextn_predict_layers is 0, the checkpoint has no MTP layer; needed: 1, or another --drafter")
        with torch.inference_mode():
            params = rank_params(weights, config, device, dtype, exchange).under(f"{TRUNK}layers.{config.num_hidden_layers}")
            return cls(params, config, embedding, pages, slots, kv)

    @torch.inference_mode()
    def reset(self, slot: int) -> None:
        """Make `slot` the memory of an empty sequence."""
        self.slots.reset(slot)

    @torch.inference_mode()
    def run_prompt(self, sequence: Sequence, following: Items[int], hidden: Tensor) -> Tensor:
        """Commit rows behind `sequence`, of a length that 64 divides; `hidden [n, D]` is the trunk's. Returns the last row `[1, D]`."""
        out = hidden[:0]
        for at in range(0, len(following), PROMPT_ROWS):
            tokens = following[at : at + PROMPT_ROWS]
            rows = self._planner.plan([sequence], [tokens], (1,) * len(tokens), PROMPT_ROWS)
            tile = PromptTile(self.slots, sequence.slot, rows.count, rows.padded)
            out = self._forward(rows, tile, hidden[at : at + PROMPT_ROWS])[-1:]
            tile.commit()
            sequence.length += rows.count
        return out

    @torch.inference_mode()
    def run_step(self, windows: Items[Window]) -> Tensor:
        """Commit the rows of each window `(sequence, following tokens, hidden [n, D])`, at most 32 in all. Returns the last row of each."""
        order = sorted(range(len(windows)), key=lambda at: -len(windows[at][1]))
        sequences, tokens, hidden = zip(*(windows[at] for at in order), strict=True)
        active = tuple(sum(len(ids) > step for ids in tokens) for step in range(len(tokens[0])))
        places = [(owner, step) for step, count in enumerate(active) for owner in range(count)]
        rows = self._planner.plan(sequences, tokens, active, host.padded(len(places), self.embedding.table, STEP_ROWS))
        window = StepWindow(self.slots, [sequence.slot for sequence in sequences], active, rows.padded)
        out = self._forward(rows, window, torch.stack([hidden[owner][step] for owner, step in places]))
        window.commit([len(ids) for ids in tokens])
        for sequence, ids in zip(sequences, tokens, strict=True):
            sequence.length += len(ids)
        last = {owner: row for row, (owner, _) in enumerate(places)}
        return out[[last[order.index(at)] for at in range(len(windows))]]

    @torch.inference_mode()
    def open_pools(self, sequences: Items[Sequence]) -> Tensor:
        """What `run_step` will change of the sequences beyond their length and rows behind it, for `restore`."""
        return self.slots.index_tail[:, [sequence.slot for sequence in sequences]].clone()

    @torch.inference_mode()
    def restore(self, sequences: Items[Sequence], open_pools: Tensor, lengths: Items[int]) -> None:
        """Cut the sequences back to where `open_pools` was taken."""
        self.slots.index_tail[:, [sequence.slot for sequence in sequences]] = open_pools
        for sequence, length in zip(sequences, lengths, strict=True):
            sequence.length = length

    @np.errstate(over="ignore")
    def _forward(self, rows: Rows, memory: RowMemory, hidden: Tensor) -> Tensor:
        embedded = self.embedding(rows.ids)
        # The layer was trained without the token that follows position 0.
        embedded[[row for row, position in enumerate(rows.positions) if position == 0]] = 0
        trunk = hidden.new_zeros(rows.padded, hidden.shape[1])
        trunk[: rows.count] = hidden
        x = self.join(torch.cat([self.token_norm(embedded), self.hidden_norm(trunk)], -1))
        x = x + self.attention(self.attention_norm(x), rows, memory, self._store)
        x = x + self.mlp(self.mlp_norm(x), rows)
        return self.norm(x)[: rows.count]
