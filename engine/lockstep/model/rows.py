"""From sequences and tokens to the index tensors of one forward pass. Host arithmetic only: computes nothing of the model."""

from collections.abc import Sequence as Items
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.cache import PAGE_TOKENS, Sequence, TokenPool
from lockstep.cache.window import source_index
from lockstep.config.model import TextConfig
from lockstep.kernels.indexer import SCORE_BLOCK
from lockstep.kernels.latent_attention import key_slots
from lockstep.layers.rows import Rows, ScoredRows

Ints = NDArray[np.int64]


class RowPlanner:
    """Builds `Rows` for one model and one pool."""

    def __init__(self, config: TextConfig, pool: TokenPool) -> None:
        self.pool, self.config = pool, config
        self.device = pool.latents.device
        slot = np.arange(key_slots(config.keys_per_row))
        self._tail = slot >= config.index_topk
        self._member = np.where(self._tail, slot - config.index_topk, slot)

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
        return Rows(
            count=count,
            padded=padded,
            ids=self._tensor([tokens[owner][step] for owner, step in order] + [0] * (padded - count)),
            positions=positions,
            conv_index=_source_index(active, self.config.linear_conv_kernel, padded, self.device),
            member_index=_source_index(active, self.config.index_kpool, padded, self.device),
            latent_places=self._tensor(latents),
            pool_places=self._tensor(pools),
            keys=keys,
            key_bias=bias,
            scored=self._scored(sequences, owners, positions),
        )

    def _tensor(self, values: Items[int] | Items[Items[int]] | Ints) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.int64)).to(self.device)

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
        whole, tail = np.divmod(np.asarray(positions)[:, None] + 1, members)
        valid = self._member < np.where(self._tail, tail, np.minimum(whole, limit) * members)
        token = np.where(self._tail, whole * members + self._member, self._member)
        token *= valid
        longest = max(len(sequence.pages) for sequence in sequences)
        table = np.array([sequence.pages + [0] * (longest - len(sequence.pages)) for sequence in sequences])
        page, within = np.divmod(token, PAGE_TOKENS)
        place = np.where(valid, table[np.asarray(owners)[:, None], page] * PAGE_TOKENS + within, self.pool.zero_page * PAGE_TOKENS)
        bias = np.where(valid, np.float32(0.0), np.float32(-np.inf))[:, None]
        return self._tensor(place), torch.from_numpy(bias).to(self.device)

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
        page, within = np.divmod(np.arange(count), per_page)
        places = np.full(-(-count // SCORE_BLOCK) * SCORE_BLOCK, self.pool.zero_page * per_page)
        places[:count] = np.asarray(sequence.pages)[page] * per_page + within
        return self._tensor(places)


@lru_cache(maxsize=512)
def _source_index(active: tuple[int, ...], width: int, padded: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(source_index(active, width, padded), device=device)
