"""One request between submit and finish: what it owns, how far it is, how long each part took. Numbers only; decides nothing."""

from dataclasses import dataclass, field, replace

from lockstep.core.grid import pages_of
from lockstep.core.types import EngineRequest, FinishReason, RoundEvent, TokenLogprob, Usage
from lockstep.sched.reuse import PromptWork


@dataclass(slots=True, eq=False)
class Live:
    """Waiting until `admitted_s` is set; from then on running, or paused while it has no slot. Reply tokens are counted, not kept.

    `place` sorts requests: rank, then order of arrival.
    """

    request: EngineRequest
    arrived_s: float
    place: tuple[int, int]
    turn: int
    prompt: PromptWork
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    admitted_s: float | None = None
    decoding_since_s: float = 0.0
    generated: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def decoding(self) -> bool:
        return self.generated > 0

    @property
    def expires_s(self) -> float:
        return self.arrived_s + self.request.deadline_s if self.request.deadline_s else float("inf")

    @property
    def most_pages(self) -> int:
        """Pages of its prompt and its longest reply."""
        return pages_of(self.prompt.tokens + self.request.max_tokens)

    def needed_pages(self, drafts: int = 0) -> int:
        """Pages its next step writes to: those of the prompt, or of all tokens but the newest, which is run with `drafts` behind it."""
        return pages_of(self.prompt.tokens + self.generated + (drafts if self.decoding else 0))

    def progress(self, tokens: tuple[int, ...], drafted: int) -> tuple[tuple[int, ...], FinishReason | None]:
        """Count the tokens of a round up to the one that ends the request, if one does; these, and why it ended."""
        request, taken, finish = self.request, 0, None
        while finish is None and taken < len(tokens):
            self.generated += 1
            if tokens[taken] in request.stop_ids and not request.ignore_eos and self.generated > request.min_tokens:
                finish = FinishReason.STOP
            elif self.generated >= request.max_tokens:
                finish = FinishReason.LENGTH
            taken += 1
        self.rounds += 1
        self.drafted += drafted
        self.accepted += max(0, len(tokens) - 1)
        return tokens[:taken], finish

    def told(self, event: RoundEvent, logprobs: tuple[TokenLogprob, ...]) -> RoundEvent:
        """`event` of tokens with what was asked for beside them; what belongs to the prompt is told once."""
        prompt, self.prompt_logprobs = tuple(self.prompt_logprobs), []
        return replace(event, logprobs=logprobs[: len(event.token_ids)], prompt_logprobs=prompt, cached_tokens=self.prompt.cached)

    def end(self, now_s: float, tokens: tuple[int, ...], reason: FinishReason, error: str | None = None) -> RoundEvent:
        return RoundEvent(self.id, tokens, reason, self._usage(now_s), error=error)

    def _usage(self, now_s: float) -> Usage:
        admitted = now_s if self.admitted_s is None else self.admitted_s
        decoding = self.decoding_since_s or now_s
        return Usage(
            prompt_tokens=self.prompt.tokens,
            cached_tokens=self.prompt.cached,
            completion_tokens=self.generated,
            rounds=self.rounds,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            queued_s=admitted - self.arrived_s,
            prefill_s=max(0.0, decoding - admitted),
            decode_s=now_s - decoding,
        )
