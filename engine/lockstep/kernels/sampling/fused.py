"""Draws for up to 32 rows on a CUDA device in one launch that a graph may hold. Knows settings as numbers, no request.

exact: a row is one cluster of blocks and sees its own logits and settings only. Token ids are those of `run.sampler`; where two scores
agree to 15 digits a GPU's logarithm may decide otherwise than a CPU's, alike on every GPU of a kind.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.sampling.ref import TABLE

SOURCE = Path(__file__).with_name("sample.cu")
# Of a block, and blocks of a multiprocessor: with more threads the compiler would spill.
THREADS, RESIDENT = 256, 3
FIELDS = (
    "active", "masked", "temperature", "top_k", "top_p", "min_p", "seed", "position", "repetition", "frequency", "presence", "history",
    "ahead", "biases", "bans", "told",
)  # fmt: skip
NUMBERS = frozenset({"temperature", "top_p", "min_p", "repetition", "frequency", "presence"})
MOST_ROWS, BLOCKS = 32, 8
# Drafts before a row, a request's biases, and what it may not choose; alternatives that are told.
MOST_LISTED, MOST_TOLD = 32 + 1024 + 64, 20
_TOLD_FIELDS = 4 + 2 * MOST_TOLD


def macros(vocabulary: int, kind: torch.dtype) -> dict[str, int]:
    """What the source is compiled with for logits of bf16 or fp32."""
    sizes = {"VOCABULARY": vocabulary, "HALF": int(kind is torch.bfloat16), "LISTED": MOST_LISTED, "TOLD_FIELDS": _TOLD_FIELDS}
    return {**sizes, "THREADS": THREADS, "BLOCKS": RESIDENT}


def mask_words(vocabulary: int) -> int:
    """32-bit words of one row's mask."""
    return -(-vocabulary // (BLOCKS * 32)) * BLOCKS


class RowSampler:
    """Buffers of fixed place for `MOST_ROWS` rows and `slots` histories. Fill the host's arrays, `send`, `launch` (also captured), `read`.

    Host arrays: `settings` int64 [rows, fields], numbers as float64 bits; `ids` and `values` [rows, MOST_LISTED]: the drafts before the
    row, then biases, then bans; `masks` uint8 [rows, bytes], bit by bit the ids allowed. Rows that are not active come out as they were.
    """

    def __init__(self, vocabulary: int, slots: int, device: torch.device | str) -> None:
        self.vocabulary, self.device = vocabulary, torch.device(device)
        sizes = {
            "settings": ((MOST_ROWS, len(FIELDS)), torch.int64),
            "ids": ((MOST_ROWS, MOST_LISTED), torch.int32),
            "values": ((MOST_ROWS, MOST_LISTED), torch.float64),
            "masks": ((MOST_ROWS, mask_words(vocabulary) * 4), torch.uint8),
        }
        self._held = {name: torch.zeros(size, dtype=kind, pin_memory=True) for name, (size, kind) in sizes.items()}
        self._sent = {name: torch.zeros(size, dtype=kind, device=self.device) for name, (size, kind) in sizes.items()}
        self.settings, self.ids, self.values, self.masks = (one.numpy() for one in self._held.values())
        self._histories = torch.zeros(slots, vocabulary, dtype=torch.int32, device=self.device)
        self._table = torch.from_numpy(TABLE).to(self.device)
        self._weighed = torch.empty(MOST_ROWS, vocabulary, dtype=torch.float64, device=self.device)
        self.tokens = torch.full((MOST_ROWS,), -1, dtype=torch.int64, device=self.device)
        self.told = torch.zeros(MOST_ROWS, _TOLD_FIELDS, dtype=torch.float64, device=self.device)

    def send(self, rows: int, *, lists: bool, masks: bool) -> None:
        """Copy the settings of all rows to the device; lists and masks of the first `rows` where any row has some. Does not wait."""
        self._sent["settings"].copy_(self._held["settings"], non_blocking=True)
        for name in ("ids", "values") * lists + ("masks",) * masks:
            self._sent[name][:rows].copy_(self._held[name][:rows], non_blocking=True)

    def remember(self, slot: int, ids: Tensor | None, words: np.ndarray) -> None:
        """Write a history's words (how often chosen, highest bit: seen in the prompt), of some ids or of all."""
        given = torch.from_numpy(words.astype(np.uint32).view(np.int32)).to(self.device)
        if ids is None:
            self._histories[slot] = given
        else:
            self._histories[slot, ids.to(self.device)] = given

    def launch(self, logits: Tensor) -> Tensor:
        """Draw for rows `logits [R, n]`, bf16 or fp32, n a multiple of 4; returns the ids `[R]`, -1 where nothing can be chosen."""
        rows, width = logits.shape
        if rows > MOST_ROWS or width % 4 or width < self.vocabulary or not logits.is_contiguous():
            raise ValueError(
                f"{tuple(logits.shape)}; needed: at most {MOST_ROWS} rows, a multiple of 4 of at least {self.vocabulary} logits"
            )
        kernel = cuda.load(SOURCE, macros(self.vocabulary, logits.dtype), self.device, {"sample": 0})["sample"]
        given = (logits, *self._sent.values(), self._histories, self._table, self._weighed, self.tokens, self.told, width)
        kernel(BLOCKS * rows, THREADS, given, True)
        return self.tokens[:rows]

    def read(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids `[rows]` and what is told `[rows, 4 + 2 * MOST_TOLD]`; waits for the device."""
        return self.tokens[:rows].cpu().numpy(), self.told[:rows].cpu().numpy()
