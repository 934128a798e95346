"""A stream's whole memory out of the device and back: recurrent state, pages of trunk and drafter, what the drafter remembers.

Knows where each part lives; decides nothing about when or why.
"""

from dataclasses import dataclass

import torch

from lockstep.cache import Saved, StateSlots, TokenPool
from lockstep.cache.digest import saved_hash
from lockstep.cache.saved import part, size_bytes, under
from lockstep.core.grid import pages_of
from lockstep.draft.stream import Drafter, Stream

# What lies in pages has names under this one.
PAGES = "pages"


@dataclass(frozen=True, slots=True)
class SavedStream:
    """Memory of a sequence of `length` committed tokens on the host. `tensors` depends on neither slot, pages nor parity."""

    length: int
    tensors: Saved

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return size_bytes(self.tensors)

    def state_hash(self) -> str:
        """Hash of the committed state, see `cache.state_hash`."""
        return saved_hash(self.length, part(self.tensors, "slot"), part(self.tensors, f"{PAGES}.trunk"))


class StreamMemory:
    """Saves and restores the streams of one runner."""

    def __init__(self, pool: TokenPool, slots: StateSlots, drafter: Drafter) -> None:
        self._slots, self._drafter, self.device = slots, drafter, pool.latents.device
        self._pools = {"trunk": pool} | ({"draft": drafter.pool} if drafter.pool else {})

    @property
    def state_bytes(self) -> int:
        """Host bytes of what `save_state` returns at most."""
        return self._slots.slot_bytes + self._drafter.stream_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all pools."""
        return sum(pool.page_bytes for pool in self._pools.values())

    @torch.inference_mode()
    def save(self, stream: Stream) -> SavedStream:
        """Everything committed of a stream. The stream itself (request, pending token, counts) stays with the caller."""
        sequence = stream.sequence
        return SavedStream(sequence.length, self.save_state(stream) | self.save_pages(sequence.pages[: pages_of(sequence.length)]))

    @torch.inference_mode()
    def restore(self, stream: Stream, saved: SavedStream) -> None:
        """Put `saved` into the stream's present slot and pages, which must cover it; else ValueError.

        # exact: bytes are copied, so the state has the hash it had; no row is computed.
        """
        sequence, held = stream.sequence, pages_of(saved.length)
        if len(sequence.pages) < held:
            raise ValueError(f"{len(sequence.pages)} pages for a saved state of {saved.length} tokens; needed: {held}")
        sequence.length = saved.length
        self.restore_state(stream, saved.tensors)
        self.restore_pages(sequence.pages[:held], saved.tensors)

    @torch.inference_mode()
    def save_state(self, stream: Stream) -> Saved:
        """What does not lie in pages: recurrent memory, and what the drafter remembers."""
        tensors = under("slot", self._slots.save(stream.sequence.slot))
        return tensors | under("drafter", self._drafter.save(stream)) if stream.request.draft else tensors

    @torch.inference_mode()
    def restore_state(self, stream: Stream, saved: Saved) -> None:
        """Put what `save_state` returned into the stream's present slot."""
        self._slots.restore(stream.sequence.slot, part(saved, "slot"))
        if stream.request.draft:
            self._drafter.restore(stream, part(saved, "drafter"))

    @torch.inference_mode()
    def save_pages(self, pages: list[int]) -> Saved:
        """What `pages` hold, of every pool."""
        tensors: Saved = {}
        for name, pool in self._pools.items():
            tensors |= under(f"{PAGES}.{name}", pool.save(pages))
        return tensors

    @torch.inference_mode()
    def restore_pages(self, pages: list[int], saved: Saved) -> None:
        """Write what `save_pages` returned."""
        for name, pool in self._pools.items():
            pool.restore(pages, part(saved, f"{PAGES}.{name}"))

    @torch.inference_mode()
    def copy_page(self, source: int, target: int) -> None:
        """Make page `target` hold what `source` holds, in every pool."""
        for pool in self._pools.values():
            pool.copy_page(source, target)
