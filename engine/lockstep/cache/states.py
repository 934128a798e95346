"""Per-sequence recurrent memory of fixed size: KDA states in two copies, the last convolution inputs, the indexer's open pool."""

import torch
from torch import Tensor

from lockstep.cache.saved import Saved, host_copy
from lockstep.config.model import Attention, TextConfig
from lockstep.config.share import WHOLE, Share


class StateSlots:
    """Recurrent memory of `slots` sequences.

    `kda [layer, 2 slots, H, d, d]` fp32: slot s owns copies 2 s and 2 s + 1; the committed one is named by a parity bit, the other takes
    the state after a window. `conv_tail [layer, slot, kernel - 1, 3 H d]` and `index_tail [layer, slot, index_kpool - 1,
    2 index_head_dim]` hold the newest rows before the committed end (zero before the first token), in `dtype`.
    H is this rank's share of the heads.
    """

    def __init__(
        self,
        config: TextConfig,
        slots: int,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
        share: Share = WHOLE,
    ) -> None:
        recurrent = config.attention_kinds.count(Attention.KDA)
        attending = config.attention_kinds.count(Attention.DSA)
        heads, width = share.part(config.linear_num_heads), config.linear_head_dim
        self.slots = slots
        self.kda = torch.zeros(recurrent, 2 * slots, heads, width, width, device=device)
        self.conv_tail = torch.zeros(recurrent, slots, config.linear_conv_kernel - 1, 3 * heads * width, device=device, dtype=dtype)
        self.index_tail = torch.zeros(attending, slots, config.index_kpool - 1, 2 * config.index_head_dim, device=device, dtype=dtype)
        self._parity = [0] * slots

    def reset(self, slot: int) -> None:
        """Make `slot` the memory of an empty sequence."""
        self.kda[:, self.committed(slot)] = 0
        self.conv_tail[:, slot] = 0
        self.index_tail[:, slot] = 0

    def committed(self, slot: int) -> int:
        """Copy of `slot` that holds the committed state."""
        return 2 * slot + self._parity[slot]

    def copies(self, slots: list[int]) -> tuple[Tensor, Tensor]:
        """Committed and other copy of each slot, int64 `[S]` each."""
        base = [self.committed(slot) for slot in slots]
        other = [copy ^ 1 for copy in base]
        return torch.tensor(base, device=self.kda.device), torch.tensor(other, device=self.kda.device)

    def flip(self, slot: int) -> None:
        """The other copy of `slot` becomes the committed one."""
        self._parity[slot] ^= 1

    @property
    def slot_bytes(self) -> int:
        """Host bytes of what `save` returns."""
        whole = sum(part.numel() * part.element_size() for part in (self.conv_tail, self.index_tail))
        return (whole + self.kda.numel() * self.kda.element_size() // 2) // self.slots

    def save(self, slot: int) -> Saved:
        """The committed memory of `slot` as tensors of their own on the host, without the slot axis."""
        parts = {"kda": self.kda[:, self.committed(slot)], "conv_tail": self.conv_tail[:, slot], "index_tail": self.index_tail[:, slot]}
        return {name: host_copy(part) for name, part in parts.items()}

    def restore(self, slot: int, saved: Saved) -> None:
        """Make `slot` the memory that `save` returned, whatever slot and parity it was saved from."""
        self.kda[:, self.committed(slot)] = saved["kda"].to(self.kda.device)
        self.conv_tail[:, slot] = saved["conv_tail"].to(self.kda.device)
        self.index_tail[:, slot] = saved["index_tail"].to(self.kda.device)
