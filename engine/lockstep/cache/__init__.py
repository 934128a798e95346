"""Memory of sequences: token pool, recurrent states, their hash. Knows nothing of requests or of how layers compute."""

from lockstep.cache.digest import state_hash
from lockstep.cache.saved import Saved
from lockstep.cache.sequence import PAGE_TOKENS, Sequence
from lockstep.cache.states import StateSlots
from lockstep.cache.tokens import TokenPool

__all__ = ["PAGE_TOKENS", "Saved", "Sequence", "StateSlots", "TokenPool", "state_hash"]
