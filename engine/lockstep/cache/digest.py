"""A fingerprint of everything a sequence's future depends on."""

import hashlib

import torch
from torch import Tensor

from lockstep.cache.saved import Saved
from lockstep.cache.sequence import Sequence
from lockstep.cache.states import StateSlots
from lockstep.cache.tokens import TokenPool


def state_hash(sequence: Sequence, pool: TokenPool, slots: StateSlots) -> str:
    """SHA-256 (64 hex digits) over length, KDA states, convolution and indexer rows, latents and pooled keys of the committed tokens.

    Equal states give equal hashes whatever slot, pages or parity they use; bytes past the committed end do not enter.
    """
    per_pool = slots.index_tail.shape[2] + 1
    parts = (
        slots.kda[:, slots.committed(sequence.slot)],
        slots.conv_tail[:, sequence.slot],
        slots.index_tail[:, sequence.slot],
        pool.sequence_latents(sequence.pages, sequence.length),
        pool.sequence_pooled(sequence.pages, sequence.length // per_pool),
    )
    return _hash(sequence.length, parts)


def saved_hash(length: int, slot: Saved, pages: Saved) -> str:
    """The same of `length` committed tokens that `StateSlots.save` and `TokenPool.save` took out."""
    per_pool = slot["index_tail"].shape[1] + 1
    latents, pooled = pages["latents"].flatten(1, 2)[:, :length], pages["pooled"].flatten(1, 2)[:, : length // per_pool]
    return _hash(length, (slot["kda"], slot["conv_tail"], slot["index_tail"], latents, pooled))


def _hash(length: int, parts: tuple[Tensor, ...]) -> str:
    digest = hashlib.sha256(length.to_bytes(8, "little"))
    for part in parts:
        digest.update(_bytes(part))
    return digest.hexdigest()


def _bytes(values: Tensor) -> bytes:
    return values.contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes()
