"""From sequences and tokens to the index tensors of one forward pass. Host arithmetic only: computes nothing of the model."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from lockstep.cache import PAGE_TOKENS, Sequence, TokenPool
from lockstep.cache.window import source_index
from lockstep.config.model import TextConfig
from lockstep.kernels.indexer import SCORE_BLOCK
from lockstep.kernels.latent_attention import key_slots
from lockstep.layers.rows import Rows, ScoredRows


class RowPlanner:
    """Builds `Rows` for one model and one pool."""

    def __init__(self, config: TextConfig, pool: TokenPool) -> None:
        self.pool, self.config = pool, config
        self.device = pool.latents.device
        slot = torch.arange(key_slots(config.keys_per_row))
        self._tail = slot >= config.index_topk
        self._member = torch.where(self._tail, slot - config.index_topk, slot)

    def plan(self, sequences: Items[Sequence], tokens: Items[Items[int]], active: tuple[int, ...], padded: int) -> Rows:
        """Rows of `tokens[s]` behind `sequences[s]`, ordered step by step (see `kernels.kda.step_window`), padded to `padded` rows.

        `tokens` is sorted by length, longest first; `active[j]` counts the sequences with more than j tokens. Raises ValueError if a
        sequence's pages do not cover its tokens.
        """
        for sequence, ids in zip(sequences, tokens, strict=True):
            if sequence.pages_needed(len(ids)):
                raise ValueError(
                    f"sequence in slot {sequence.slot}: {len(sequence.pages)} pages for {sequence.length} + {len(ids)} tokens; "
                    f"needed: {sequence.pages_needed(len(ids))} more pages of {PAGE_TOKENS}"
                )
        order = [(owner, step) for step, count in enumerate(active) for owner in range(count)]
        count = len(order)
        positions = tuple(sequences[owner].length + step for owner, step in order)
        owners = [owner for owner, _ in order]
        keys, bias = self._keys(sequences, owners, positions)
        latents, pools = self._places(sequences, owners, positions, padded)
        indices = [source_index(active, width, padded) for width in (self.config.linear_conv_kernel, self.config.index_kpool)]
        return Rows(
            count=count,
            padded=padded,
            ids=self._tensor([tokens[owner][step] for owner, step in order] + [0] * (padded - count)),
            positions=positions,
            conv_index=self._tensor(indices[0]),
            member_index=self._tensor(indices[1]),
            latent_places=self._tensor(latents),
            pool_places=self._tensor(pools),
            keys=keys,
            key_bias=bias,
            scored=self._scored(sequences, owners, positions),
        )

    def _tensor(self, values: Items[int] | Items[Items[int]]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def _places(
        self, sequences: Items[Sequence], owners: list[int], positions: tuple[int, ...], padded: int
    ) -> tuple[list[int], list[int]]:
        """Where each row writes its latent and the pool it completes."""
        pool, members, per_page = self.pool, self.config.index_kpool, self.pool.pools_per_page
        latents = [pool.spare_page * PAGE_TOKENS + row % PAGE_TOKENS for row in range(padded)]
        pools = [pool.spare_page * per_page + row % per_page for row in range(padded)]
        for row, (owner, position) in enumerate(zip(owners, positions, strict=True)):
            page, within = sequences[owner].pages[position // PAGE_TOKENS], position % PAGE_TOKENS
            latents[row] = page * PAGE_TOKENS + within
            if (within + 1) % members == 0:
                pools[row] = page * per_page + within // members
        return latents, pools

    def _keys(self, sequences: Items[Sequence], owners: list[int], positions: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Each row's key places in ascending order, as if it selected the first pools, and the bias that masks unused slots."""
        members, limit = self.config.index_kpool, self.config.pools_per_row
        whole = [(position + 1) // members for position in positions]
        selected = torch.tensor([[min(count, limit) * members] for count in whole])
        tail = torch.tensor([[(position + 1) % members] for position in positions])
        valid = self._member < torch.where(self._tail, tail, selected)
        start = torch.tensor([[count * members] for count in whole])
        token = torch.where(valid, torch.where(self._tail, start + self._member, self._member), 0)
        longest = max(len(sequence.pages) for sequence in sequences)
        table = torch.tensor([sequence.pages + [0] * (longest - len(sequence.pages)) for sequence in sequences])
        page = table[torch.tensor(owners).unsqueeze(1), token // PAGE_TOKENS]
        place = torch.where(valid, page * PAGE_TOKENS + token % PAGE_TOKENS, self.pool.zero_page * PAGE_TOKENS)
        bias = torch.zeros(place.shape).masked_fill_(~valid, -torch.inf)
        return place.to(self.device), bias.unsqueeze(1).to(self.device)

    def _scored(self, sequences: Items[Sequence], owners: list[int], positions: tuple[int, ...]) -> tuple[ScoredRows, ...]:
        """Groups of rows that must choose, one per sequence. Decided per row from its own position."""
        groups = []
        for owner, sequence in enumerate(sequences):
            rows = [row for row, of in enumerate(owners) if of == owner]
            whole = {row: (positions[row] + 1) // self.config.index_kpool for row in rows}
            rows = [row for row in rows if whole[row] > self.config.pools_per_row]
            if rows:
                places = self._pool_places(sequence, max(whole.values()))
                candidates = self._tensor([[whole[row]] for row in rows])
                groups.append(ScoredRows(self._tensor(rows), candidates, places))
        return tuple(groups)

    def _pool_places(self, sequence: Sequence, count: int) -> Tensor:
        per_page = self.pool.pools_per_page
        pool = torch.arange(-(-count // SCORE_BLOCK) * SCORE_BLOCK)
        page = torch.tensor(sequence.pages)[(pool // per_page).clamp_(max=len(sequence.pages) - 1)]
        return torch.where(pool < count, page * per_page + pool % per_page, self.pool.zero_page * per_page).to(self.device)
