"""Who comes first: fair between owners, shifted by priority. Knows requests only, neither queue nor memory.

Start-time fair queueing: a request's turn begins when all work its owner sent before it would have been done, had each waiting owner
been served evenly. Turns are counted in tokens of work and never change, so priority is a head start in the same measure and waiting
itself is what ages a request: whoever comes later begins later.

Source: Goyal, Vin, Cheng, "Start-time fair queueing", 1996.
"""

from lockstep.core.types import PRIORITY_TOKENS, EngineRequest

# What a reply counts for beforehand; many ask for thousands of tokens and use few.
REPLY_TOKENS = 512


def cost_tokens(request: EngineRequest) -> int:
    """Tokens of work a request counts for: its prompt and a usual reply."""
    return len(request.prompt_ids) + min(request.max_tokens, REPLY_TOKENS)


class FairOrder:
    """Hands out turns. `now` is the latest turn that has begun."""

    def __init__(self) -> None:
        self.now = 0
        self._next: dict[str, int] = {}

    def arrive(self, request: EngineRequest) -> int:
        """The turn of a request that arrives."""
        turn = max(self.now, self._next.get(request.owner, 0))
        self._next[request.owner] = turn + cost_tokens(request)
        return turn

    def begin(self, turn: int) -> None:
        """A request of this turn has entered."""
        self.now = max(self.now, turn)
        self._next = {owner: following for owner, following in self._next.items() if following > self.now}

    def leave(self, request: EngineRequest) -> None:
        """A request goes that never entered: its owner is not charged for it."""
        if request.owner in self._next:
            self._next[request.owner] -= cost_tokens(request)


def rank(turn: int, request: EngineRequest) -> int:
    """Lower goes first."""
    return turn + PRIORITY_TOKENS * request.priority
