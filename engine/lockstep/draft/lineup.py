"""Copy drafts first, a neural drafter where there is nothing to copy or copies failed lately, and a policy that cuts the neural drafts.

Knows neither drafter's insides.
"""

import time

from lockstep.cache import Saved
from lockstep.draft.copy import CopyIndex
from lockstep.draft.cost import RowCosts
from lockstep.draft.policy import Policy
from lockstep.draft.stream import Ask, Drafter, Kept, Proposal, Stream


class Lineup(Drafter):
    """`copy_tokens` 0 switches copies off; `costs` decides depth if `policy` goes by cost."""

    def __init__(self, neural: Drafter, policy: Policy, copy_tokens: int, costs: RowCosts) -> None:
        self.taps, self.pool = neural.taps, neural.pool
        self._neural, self._policy, self._copy_tokens, self._costs = neural, policy, copy_tokens, costs
        self._copies: dict[str, CopyIndex] = {}

    def admit(self, stream: Stream, known: int = 1) -> None:
        if self._copy_tokens:
            index = self._copies[stream.request.id] = CopyIndex(len(stream.request.prompt_ids), self._copy_tokens)
            index.extend(stream.request.prompt_ids[:known])
        self._neural.admit(stream)

    def save(self, stream: Stream) -> Saved:
        return self._neural.save(stream)

    def restore(self, stream: Stream, saved: Saved) -> None:
        self._neural.restore(stream, saved)

    @property
    def stream_bytes(self) -> int:
        return self._neural.stream_bytes

    def release(self, stream: Stream) -> None:
        self._copies.pop(stream.request.id, None)
        self._neural.release(stream)

    def absorb(self, kept: list[Kept]) -> None:
        for rows in kept:
            index = self._copies.get(rows.stream.request.id)
            if index is not None:
                index.settle(rows.following)
                index.extend(rows.following)
        self._neural.absorb(kept)

    def propose(self, asks: list[Ask]) -> list[Proposal]:
        drafts = [self._copy(ask) for ask in asks]
        open_places = [at for at, proposal in enumerate(drafts) if not proposal.tokens]
        if open_places and self._policy.most:
            limited = [Ask(asks[at].stream, min(asks[at].limit, self._policy.most)) for at in open_places]
            began = time.perf_counter()
            found = self._neural.propose(limited)
            if self._policy.by_cost:
                self._costs.observe_drafting(time.perf_counter() - began)
            copied_rows = sum(len(proposal.tokens) + 1 for proposal in drafts if proposal.tokens)
            for at, proposal, keep in zip(open_places, found, self._depths(found, copied_rows), strict=True):
                drafts[at] = Proposal(proposal.tokens[:keep], proposal.chances[:keep])
        return drafts

    def timed(self, rows: int, seconds: float) -> None:
        if self._policy.by_cost:
            self._costs.observe(rows, seconds)

    def _copy(self, ask: Ask) -> Proposal:
        """A copy, unless failures have made copies no longer than what the neural drafter may guess."""
        index = self._copies.get(ask.stream.request.id)
        if index is None:
            return Proposal()
        trusted = index.length > self._policy.most
        tokens = index.propose(ask.limit)
        return Proposal(tokens if trusted else ())

    def _depths(self, found: list[Proposal], other_rows: int) -> list[int]:
        if self._policy.by_cost:
            return self._costs.depths([proposal.chances for proposal in found], other_rows)
        return [self._policy.depth(proposal.chances) for proposal in found]
