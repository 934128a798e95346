"""Drafts of the block drafter: one block per round and stream, then a walk over its candidates, each scored behind the one before."""

import numpy as np
from numpy.typing import NDArray

from lockstep.cache import Saved
from lockstep.draft.choice import choose_draft
from lockstep.draft.policy import Policy
from lockstep.draft.stream import Ask, Drafter, Kept, Proposal, Stream
from lockstep.model.dflash2 import BlockDrafter


class BlockDrafts(Drafter):
    """Batched over streams. `noise` see `choose_draft`; `edge` weighs what the selector says of two neighbours."""

    def __init__(self, model: BlockDrafter, policy: Policy, noise: float, edge: float) -> None:
        self.taps = model.config.target_layer_ids
        self._model, self._policy, self._noise, self._edge = model, policy, noise, edge

    def save(self, stream: Stream) -> Saved:
        return self._model.save(stream.sequence.slot)

    def restore(self, stream: Stream, saved: Saved) -> None:
        self._model.restore(stream.sequence.slot, saved)

    @property
    def stream_bytes(self) -> int:
        return self._model.slot_bytes

    def absorb(self, kept: list[Kept]) -> None:
        self._model.absorb([(rows.stream.sequence.slot, rows.start, rows.taps) for rows in kept])

    def propose(self, asks: list[Ask]) -> list[Proposal]:
        streams = [ask.stream for ask in asks]
        found = self._model.propose(
            [stream.sequence.slot for stream in streams],
            [stream.sequence.length for stream in streams],
            [stream.pending for stream in streams],
        )
        tokens, logits, edges = (values.cpu().numpy() for values in (found.tokens, found.logits, found.edges))
        return [self._walk(ask, *block) for ask, *block in zip(asks, tokens, logits, edges, strict=True)]

    def _walk(self, ask: Ask, tokens: NDArray[np.int64], logits: NDArray[np.float32], edges: NDArray[np.float32]) -> Proposal:
        """`tokens` and `logits [T, K]`, `edges [T, K, K]` of one block."""
        path: list[int] = []
        chances: list[float] = []
        previous, stream = 0, ask.stream
        for row in range(min(ask.limit, len(tokens))):
            scores = logits[row] + self._edge * edges[row, previous]
            previous, chance = choose_draft(scores, tokens[row], stream.request.sampling, stream.position + row, self._policy, self._noise)
            path.append(int(tokens[row, previous]))
            chances.append(chance)
        return Proposal(tuple(path), tuple(chances))
