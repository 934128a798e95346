"""Per-token memory of the latent attention layers, in pages shared by all sequences. Storage only: knows no owner of a page."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.cache.sequence import PAGE_TOKENS
from lockstep.config.model import Attention, TextConfig


class TokenPool:
    """Latents `[layer, token, kv_lora_rank]` and pooled index keys `[layer, pool, index_head_dim]` of `pages` pages.

    Token `t` of a sequence lies at `pages[t // 64] * 64 + t % 64`, pool `p` at `pages[p // n] * n + p % n`, n = 64 / index_kpool.
    Two further pages exist inside: `zero_page` is never written (masked keys point there), `spare_page` takes the writes of
    rows that carry no token.

    Raises ValueError if a page does not hold whole pools.
    """

    def __init__(self, config: TextConfig, pages: int, device: torch.device | str, dtype: torch.dtype) -> None:
        if PAGE_TOKENS % config.index_kpool:
            raise ValueError(f"index_kpool {config.index_kpool} does not divide a page of {PAGE_TOKENS} tokens; needed: a divisor")
        layers = config.attention_kinds.count(Attention.DSA)
        self.pages = pages
        self.pools_per_page = PAGE_TOKENS // config.index_kpool
        self.zero_page, self.spare_page = pages, pages + 1
        held = pages + 2
        self.latents = torch.zeros(layers, held * PAGE_TOKENS, config.kv_lora_rank, device=device, dtype=dtype)
        self.pooled = torch.zeros(layers, held * self.pools_per_page, config.index_head_dim, device=device, dtype=dtype)

    def sequence_latents(self, pages: list[int], tokens: int) -> Tensor:
        """Latents of the first `tokens` tokens in position order, `[layer, tokens, kv_lora_rank]`, a copy."""
        return self._ordered(self.latents, PAGE_TOKENS, pages, tokens)

    def sequence_pooled(self, pages: list[int], pools: int) -> Tensor:
        """Index keys of the first `pools` pools in position order, `[layer, pools, index_head_dim]`, a copy."""
        return self._ordered(self.pooled, self.pools_per_page, pages, pools)

    @staticmethod
    def _ordered(store: Tensor, per_page: int, pages: list[int], count: int) -> Tensor:
        paged = store.view(store.shape[0], -1, per_page, store.shape[-1])
        index = torch.tensor(pages[: -(-count // per_page)], dtype=torch.int64, device=store.device)
        return paged.index_select(1, index).flatten(1, 2)[:, :count]
