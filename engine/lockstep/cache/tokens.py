"""Per-token memory of the latent attention layers, in pages shared by all sequences. Storage only: knows no owner of a page."""

import torch
from torch import Tensor

from lockstep.cache.saved import Saved, host_copy
from lockstep.config.model import Attention, TextConfig
from lockstep.core.grid import PAGE_TOKENS
from lockstep.kernels import fp8


class TokenPool:
    """Latents `[layer, token, kv_lora_rank]` and pooled index keys `[layer, pool, index_head_dim]` of `pages` pages, in `dtype`.

    `form` fp8 stores both as rows of `kernels.fp8.row_store` instead: e4m3 codes and the row's exponent.

    Token `t` of a sequence lies at `pages[t // 64] * 64 + t % 64`, pool `p` at `pages[p // n] * n + p % n`, n = 64 / index_kpool.
    Two further pages exist inside: `zero_page` is never written (masked keys point there), `spare_page` takes the writes of
    rows that carry no token.

    Raises ValueError if a page does not hold whole pools.
    """

    def __init__(self, config: TextConfig, pages: int, device: torch.device | str, dtype: torch.dtype, form: str = "bf16") -> None:
        if PAGE_TOKENS % config.index_kpool:
            raise ValueError(f"index_kpool {config.index_kpool} does not divide a page of {PAGE_TOKENS} tokens; needed: a divisor")
        layers = config.attention_kinds.count(Attention.DSA)
        self.pages = pages
        self.pools_per_page = PAGE_TOKENS // config.index_kpool
        self.zero_page, self.spare_page = pages, pages + 1
        held = pages + 2
        sizes = ((held * PAGE_TOKENS, config.kv_lora_rank), (held * self.pools_per_page, config.index_head_dim))
        if form == "fp8":
            self.latents, self.pooled = (fp8.row_store((layers, rows), width, device) for rows, width in sizes)
        else:
            self.latents, self.pooled = (torch.zeros(layers, *size, device=device, dtype=dtype) for size in sizes)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers."""
        return sum(store.numel() * store.element_size() for store in self._stores().values()) // (self.pages + 2)

    def save(self, pages: list[int]) -> Saved:
        """Whole pages in the order given, each store `[layer, len(pages), rows of a page, width]`, as tensors of their own on the host."""
        index = torch.tensor(pages, dtype=torch.int64, device=self.latents.device)
        return {name: host_copy(self._paged(store).index_select(1, index)) for name, store in self._stores().items()}

    def restore(self, pages: list[int], saved: Saved) -> None:
        """Write what `save` returned into `pages`, as many as were saved."""
        index = torch.tensor(pages, dtype=torch.int64, device=self.latents.device)
        for name, store in self._stores().items():
            self._paged(store).index_copy_(1, index, saved[name].to(store.device))

    def copy_page(self, source: int, target: int) -> None:
        """Make `target` hold what `source` holds."""
        for store in self._stores().values():
            paged = self._paged(store)
            paged[:, target] = paged[:, source]

    def _stores(self) -> dict[str, Tensor]:
        return {"latents": self.latents, "pooled": self.pooled}

    def _paged(self, store: Tensor) -> Tensor:
        return store.view(store.shape[0], self.pages + 2, -1, store.shape[-1])
