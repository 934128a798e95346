"""The bounded queue: requests that wait, first to be served first, and when one more is too many."""

from bisect import insort
from collections.abc import Iterator

from lockstep.sched.live import Live


class Queue:
    """`most` requests of `most_tokens` prompt tokens together may wait."""

    def __init__(self, most: int, most_tokens: int) -> None:
        self.most, self.most_tokens = most, most_tokens
        self._lives: list[Live] = []

    def __len__(self) -> int:
        return len(self._lives)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._lives)

    @property
    def tokens(self) -> int:
        """Prompt tokens that wait."""
        return sum(live.prompt.tokens for live in self._lives)

    def add(self, live: Live) -> None:
        """Let `live` wait at its place."""
        insort(self._lives, live, key=lambda one: one.place)

    def remove(self, live: Live) -> None:
        """`live` waits no more."""
        self._lives.remove(live)

    def too_many(self, held_back: list[Live]) -> int:
        """How many of `held_back`, in order, must go before the others may wait; 0 if all may."""
        tokens = sum(live.prompt.tokens for live in held_back)
        gone = 0
        while len(held_back) - gone > self.most or tokens > self.most_tokens:
            tokens -= held_back[gone].prompt.tokens
            gone += 1
        return gone
