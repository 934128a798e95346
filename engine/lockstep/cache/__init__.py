"""Memory of sequences: token pool, recurrent states, their hash. Knows nothing of requests or of how layers compute."""

from lockstep.cache.digest import state_hash
from lockstep.cache.saved import Saved
from lockstep.cache.sequence import Sequence
from lockstep.cache.states import StateSlots
from lockstep.cache.tokens import TokenPool
from lockstep.core.grid import PAGE_TOKENS

__all__ = ["PAGE_TOKENS", "Saved", "Sequence", "StateSlots", "TokenPool", "state_hash"]
