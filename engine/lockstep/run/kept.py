"""Prompt states kept on this rank, in memory and on disk, under the numbers that plans name. Decides nothing about which and how long.

A state is that behind a prompt prefix. What its drafter remembers is that before the prefix's last tile, together with the taps of the
tile's rows: what a drafter makes of a row may depend on the token behind it, which is not part of the prefix.
"""

import logging
from dataclasses import dataclass

from torch import Tensor

from lockstep.cache import PAGE_TOKENS, Saved
from lockstep.cache.saved import host_copy
from lockstep.cache.spill import SpillError, SpillFolder
from lockstep.core.grid import last_tile, pages_of
from lockstep.core.plan import Restore, Spill
from lockstep.draft.stream import Stream
from lockstep.layers.exchange import Exchange, every_rank
from lockstep.run.memory import PAGES, StreamMemory

log = logging.getLogger("lockstep.kept")


@dataclass(frozen=True, slots=True)
class LastTile:
    """The last tile of a kept prefix: `taps [n, rows, D]` on the device, and the logits `[V]` fp32 of its last row at a prompt's end."""

    taps: Tensor
    logits: Tensor | None


@dataclass(frozen=True, slots=True)
class KeptSizes:
    """Bytes of a state at most, of the logits beside it at a prompt's end, and of a page on disk."""

    state_bytes: int
    logits_bytes: int
    page_bytes: int


class KeptStates:
    """States of one runner. Without `spill` none is ever written to disk."""

    def __init__(self, memory: StreamMemory, exchange: Exchange, spill: SpillFolder | None = None) -> None:
        self._memory, self._exchange, self._spill = memory, exchange, spill
        self._held: dict[int, Saved] = {}

    def keep(self, number: int, stream: Stream, taps: Tensor, logits: Tensor | None) -> None:
        """Keep the committed state of `stream`, whose drafter has not yet seen the rows of the last tile, whose `taps` these are."""
        saved = self._memory.save_state(stream) | {"taps": host_copy(taps)}
        self._held[number] = saved if logits is None else saved | {"logits": host_copy(logits)}

    def spill(self, orders: tuple[Spill, ...]) -> None:
        """Let states go; those not on disk yet are handed to the writer with their pages."""
        for order in orders:
            saved = self._held.pop(order.kept)
            if order.pages:
                assert self._spill is not None
                self._spill.write(order.kept, saved | self._memory.save_pages(list(order.pages)), order.label)

    def drop(self, numbers: tuple[int, ...]) -> None:
        """Forget states, wherever they are."""
        for number in numbers:
            self._held.pop(number, None)
            if self._spill is not None:
                self._spill.remove(number)

    def begin(self, stream: Stream, restore: Restore) -> LastTile | None:
        """Make `stream`, which was just admitted, the prefix of `restore`. None, and nothing changed, if a rank cannot read its part."""
        saved = self._held.get(restore.kept) if restore.source >= 0 else self._read(restore.kept)
        if saved is None:
            return None
        held, last = pages_of(restore.tokens), last_tile(restore.tokens) // PAGE_TOKENS
        if restore.source >= 0:
            self._memory.copy_page(restore.source, stream.sequence.pages[last])
        else:
            self._memory.restore_pages(stream.sequence.pages[:held], saved)
        self._memory.restore_state(stream, saved)
        stream.sequence.length = restore.tokens
        if restore.stays:
            self._held[restore.kept] = {name: values for name, values in saved.items() if not name.startswith(f"{PAGES}.")}
        return LastTile(saved["taps"].to(self._memory.device), saved.get("logits"))

    def _read(self, number: int) -> Saved | None:
        """A state from disk, if every rank has its part of it."""
        assert self._spill is not None
        saved = None
        try:
            saved = self._spill.read(number)
        except SpillError as error:
            log.warning("%s", error)
        # exact: a state is used on all ranks or on none.
        return saved if every_rank(self._exchange, saved is not None, self._memory.device) else None
