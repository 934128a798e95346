"""Drafts by a chain of the MTP layer: each guess is fed back as the next token, with the layer's own output in place of the trunk's."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.cache import Saved, Sequence
from lockstep.cache.saved import host_copy
from lockstep.draft.choice import choose_draft
from lockstep.draft.policy import Policy
from lockstep.draft.stream import Ask, Drafter, Kept, Proposal, Stream
from lockstep.model.mtp import MtpLayer

CANDIDATES = 16


@dataclass(slots=True)
class _Chain:
    """A stream in the layer's memory; `last [1, D]` is the layer's output for the newest committed row."""

    sequence: Sequence
    last: Tensor


@dataclass(slots=True)
class _Guess:
    """A proposal being drawn. `token` is the newest draft."""

    ask: Ask
    chain: _Chain
    tokens: list[int]
    chances: list[float]


class MtpDrafter(Drafter):
    """Batched over streams. `head` gives logits of rows `[R, D]`; ids from `vocabulary` on are padding; `noise` see `choose_draft`."""

    def __init__(
        self, layer: MtpLayer, trunk_layers: int, head: Callable[[Tensor], Tensor], vocabulary: int, policy: Policy, noise: float
    ) -> None:
        self.taps, self.pool = (trunk_layers,), layer.pool
        self._layer, self._head, self._vocabulary = layer, head, vocabulary
        self._policy, self._noise = policy, noise
        self._chains: dict[str, _Chain] = {}

    def admit(self, stream: Stream, known: int = 1) -> None:
        self._layer.reset(stream.sequence.slot)
        self._chains[stream.request.id] = _Chain(Sequence(stream.sequence.slot, stream.sequence.pages), torch.empty(0))

    def save(self, stream: Stream) -> Saved:
        chain = self._chains[stream.request.id]
        memory = self._layer.slots.save(stream.sequence.slot)
        return memory | {"length": torch.tensor(chain.sequence.length), "last": host_copy(chain.last)}

    def restore(self, stream: Stream, saved: Saved) -> None:
        self._layer.slots.restore(stream.sequence.slot, saved)
        sequence = Sequence(stream.sequence.slot, stream.sequence.pages, int(saved["length"]))
        self._chains[stream.request.id] = _Chain(sequence, saved["last"].to(self._layer.pool.latents.device))

    @property
    def stream_bytes(self) -> int:
        slots = self._layer.slots
        return slots.slot_bytes + self._layer.hidden * slots.index_tail.element_size()

    def release(self, stream: Stream) -> None:
        del self._chains[stream.request.id]

    def absorb(self, kept: list[Kept]) -> None:
        steps: list[tuple[_Chain, tuple[int, ...], Tensor]] = []
        for rows in kept:
            chain = self._chains[rows.stream.request.id]
            if rows.start < len(rows.stream.request.prompt_ids):
                chain.last = self._layer.run_prompt(chain.sequence, rows.following, rows.taps[0])
            else:
                steps.append((chain, rows.following, rows.taps[0]))
        if steps:
            out = self._layer.run_step([(chain.sequence, following, hidden) for chain, following, hidden in steps])
            for (chain, _, _), row in zip(steps, out.split(1), strict=True):
                chain.last = row

    def propose(self, asks: list[Ask]) -> list[Proposal]:
        guesses = [_Guess(ask, self._chains[ask.stream.request.id], [], []) for ask in asks]
        sequences = [guess.chain.sequence for guess in guesses]
        lengths, pools = [sequence.length for sequence in sequences], self._layer.open_pools(sequences)
        going = [(guess, guess.chain.last) for guess in guesses]
        while going:
            self._draw([guess for guess, _ in going], torch.cat([hidden for _, hidden in going]))
            longer = [(guess.chain.sequence, guess.tokens[-1:], hidden) for guess, hidden in going if self._goes_on(guess)]
            kept = [guess for guess, _ in going if self._goes_on(guess)]
            going = list(zip(kept, self._layer.run_step(longer).split(1), strict=True)) if kept else []
        self._layer.restore(sequences, pools, lengths)
        return [Proposal(tuple(guess.tokens), tuple(guess.chances)) for guess in guesses]

    def _goes_on(self, guess: _Guess) -> bool:
        return len(guess.tokens) < guess.ask.limit and self._policy.goes_on(guess.chances)

    def _draw(self, going: list[_Guess], hidden: Tensor) -> None:
        """One more draft for each, from the layer's outputs `hidden [len(going), D]`."""
        scores, tokens = self._head(hidden)[:, : self._vocabulary].topk(min(CANDIDATES, self._vocabulary))
        host_scores, host_tokens = scores.cpu().numpy(), tokens.cpu().numpy()
        for guess, row, ids in zip(going, host_scores, host_tokens, strict=True):
            stream = guess.ask.stream
            position = stream.position + len(guess.tokens)
            best, chance = choose_draft(row, ids, stream.request.sampling, position, self._policy, self._noise)
            guess.tokens.append(int(ids[best]))
            guess.chances.append(chance)
