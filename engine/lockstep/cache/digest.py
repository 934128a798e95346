"""A fingerprint of everything a sequence's future depends on."""

import hashlib

import torch

from lockstep.cache.saved import Saved
from lockstep.cache.sequence import Sequence
from lockstep.cache.states import StateSlots
from lockstep.cache.tokens import TokenPool
from lockstep.core.grid import pages_of


def state_hash(sequence: Sequence, pool: TokenPool, slots: StateSlots) -> str:
    """SHA-256 (64 hex digits) over length, KDA states, convolution and indexer rows, latents and pooled keys of the committed tokens.

    Equal states give equal hashes whatever slot, pages or parity they use; bytes past the committed end do not enter.
    """
    return saved_hash(sequence.length, slots.save(sequence.slot), pool.save(sequence.pages[: pages_of(sequence.length)]))


def saved_hash(length: int, slot: Saved, pages: Saved) -> str:
    """The same of `length` committed tokens that `StateSlots.save` and `TokenPool.save` took out."""
    digest, per_pool = hashlib.sha256(length.to_bytes(8, "little")), slot["index_tail"].shape[1] + 1
    latents, pooled = pages["latents"].flatten(1, 2)[:, :length], pages["pooled"].flatten(1, 2)[:, : length // per_pool]
    for part in (slot["kda"], slot["conv_tail"], slot["index_tail"], latents, pooled):
        digest.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
