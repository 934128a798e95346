"""Prompt slices on a CUDA device: up to 64 tiles of one sequence go through a layer together. Computes nothing of the model."""

from collections.abc import Sequence as Items

import numpy as np
import torch

from lockstep.cache import PAGE_TOKENS, Sequence, StateSlots, TokenPool
from lockstep.config.model import TextConfig
from lockstep.kernels import round as plans
from lockstep.kernels.latent_attention import paged
from lockstep.kernels.round import Round, Slice
from lockstep.layers.latent_attention import LatentAttention
from lockstep.layers.rows import Rows

MOST_ROWS = 4096


class Slices:
    """Slices of one model over one pool and its slots."""

    def __init__(self, config: TextConfig, attentions: Items[LatentAttention], pool: TokenPool, slots: StateSlots) -> None:
        self._config, self._pool, self._slots, self._attentions = config, pool, slots, attentions

    def rows(self, sequence: Sequence, ids: Items[int]) -> Rows:
        """What layers are told of `ids` behind `sequence`, whose length is a multiple of 64. Raises ValueError if pages are missing."""
        if sequence.pages_needed(len(ids)):
            raise ValueError(f"sequence in slot {sequence.slot}: {len(sequence.pages)} pages for {sequence.length} + {len(ids)} tokens")
        pool, slots, count, first, device = self._pool, self._slots, len(ids), sequence.length, self._slots.kda.device
        rows, copy, members = -(-count // PAGE_TOKENS) * PAGE_TOKENS, slots.committed(sequence.slot), self._config.index_kpool
        told = np.zeros(plans.plan_size(rows, 1), np.int32)
        told[:3] = count, 1, count
        fields = told[plans.HEAD : plans.HEAD + plans.FIELDS * rows].reshape(plans.FIELDS, rows)
        fields[1], fields[4], fields[5] = -1, pool.spare_page * PAGE_TOKENS, pool.spare_page * pool.pools_per_page
        steps = np.arange(count)
        page, within = np.array(sequence.pages)[(first + steps) // PAGE_TOKENS], (first + steps) % PAGE_TOKENS
        fields[0, :count], fields[1, :count], fields[3, :count] = ids, first + steps, steps
        fields[4, :count] = page * PAGE_TOKENS + within
        ends = within % members == members - 1
        fields[5, :count][ends] = (page * pool.pools_per_page + within // members)[ends]
        rest = told[plans.HEAD + plans.FIELDS * rows :]
        rest[: count + 1] = np.arange(count + 1)
        rest[rows + 1 :] = sequence.slot, copy, copy, count
        plan, pages = (torch.from_numpy(part).to(device) for part in (told, np.array([sequence.pages], np.int32)))
        none = plan[:0]
        raw = torch.empty(len(self._attentions), rows, slots.index_tail.shape[3], dtype=slots.index_tail.dtype, device=device)
        at = Round(rows, 1, plan, pages, slots.kda, slots.conv_tail, slots.index_tail, none, raw, None)
        given = plan[plans.HEAD : plans.HEAD + rows]
        return Rows(count, rows, given, (), none, none, none, none, none, none, (), None, Slice(at, sequence.slot, copy, first, count))

    def commit(self, rows: Rows) -> None:
        """Keep the slice's newest rows of the indexer; all else is where it belongs."""
        if self._attentions and rows.slice is not None:
            coded = self._pool.latents.dtype is torch.uint8
            paged.commit(rows.slice.at, self._attentions[0].kernels(coded, self._slots.kda.device))
