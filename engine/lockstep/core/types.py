"""What crosses module borders: plain frozen dataclasses, standard library only. Knows nothing of HTTP, tokenizers or tensors."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended. The first two are OpenAI's words; the API layer maps the others to an error.

    EXPIRED: its deadline passed before its first token. Later than that, a deadline ends a reply with LENGTH.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"
    EXPIRED = "expired"


PRIORITIES = range(-8, 9)
# One step of priority lets every owner do so many tokens of work more, or fewer, before.
PRIORITY_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of one request. `temperature` <= 0 means greedy (argmax, lowest id on ties).

    `top_k` 0 and `top_p` 1.0 and `min_p` 0.0 switch the respective cut off. `seed` is an unsigned 64-bit integer: the noise
    of position p and token t is a function of (seed, p, t) and of nothing else.

    Before any cut the logits of ids that were seen, in prompt or reply, are divided by `repetition_penalty` if positive and multiplied by
    it if not; of ids the reply has, `presence_penalty` and, once for each time, `frequency_penalty` are taken off; then `logit_bias` pairs
    (id, number) are added.
    """

    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 0.95
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def has_penalties(self) -> bool:
        """True if the tokens so far change what comes next."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability under the model alone (before penalties, biases, masks, temperature and cuts), and the
    likeliest ids with theirs, likeliest first, lower ids first among equals.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A still picture or a pair of frames of a clip, which stands for `tokens` placeholders of a prompt from position `start` on.

    `pixels` are uint8 [frames, height, width, 3], `digest` the hex SHA-256 over sizes and pixels.
    """

    start: int
    tokens: int
    frames: int
    height: int
    width: int
    digest: str
    pixels: bytes


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a reply has to look like: a compiled grammar (`grammars`) and the name of what it was compiled from.

    It holds behind the first id `begins_behind`, from the reply's begin if that is -1; the reply cannot end before.
    """

    digest: str
    data: bytes
    begins_behind: int = -1


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One tokenised request as the scheduler sees it. `prompt_ids` is never empty; `max_tokens` >= 1 counts generated tokens.

    Prompt states are shared inside a `namespace` only. `marks` are prompt lengths at which other prompts may branch off, ascending; the
    first is the end of system text and tools.

    `owner` is whose turn it is when requests wait: owners share the server evenly. `priority` is a value of PRIORITIES, lower goes first.
    `deadline_s` seconds after its arrival a request ends, 0 for never. Prompts are compared by `identity`, never by `prompt_ids`, which are
    equal for different pictures.

    With `logprobs` >= 0 each token of the reply comes with that many alternatives, with `prompt_logprobs` >= 0 each token of the prompt but
    the first, which is then run from its begin whatever states are kept. `close_after` (n, id): unless one of the first n tokens of the
    reply is id, the next one is.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stop_ids: frozenset[int] = field(default_factory=frozenset)
    min_tokens: int = 0
    ignore_eos: bool = False
    draft: bool = True
    namespace: str = ""
    marks: tuple[int, ...] = ()
    owner: str = ""
    priority: int = 0
    deadline_s: float = 0.0
    pictures: tuple[Picture, ...] = ()
    logprobs: int = -1
    prompt_logprobs: int = -1
    close_after: tuple[int, int] | None = None
    grammar: Grammar | None = None

    @property
    def identity(self) -> tuple[int, ...]:
        """64-bit numbers, equal as far as two prompts are: ids, but at placeholders the digest of their picture, repeated."""
        numbers = list(self.prompt_ids)
        for picture in self.pictures:
            words = [int(picture.digest[at : at + 16], 16) for at in range(0, 64, 16)]
            numbers[picture.start : picture.start + picture.tokens] = (words * (picture.tokens // 4 + 1))[: picture.tokens]
        return tuple(numbers)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and times of one request so far. Times are seconds on the engine's monotonic clock."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """Tokens one request got in one round, in order. `finish` is set on the last event of a request, exactly once.

    `usage` is set on the last event only. `state_hash` (hex SHA-256 of the committed state) only when the engine runs with
    state hashes on, and only on the last event. A stop token is part of `token_ids`. `logprobs`, if asked for, are those of `token_ids`;
    `prompt_logprobs` come with the first event, those of all prompt tokens behind the first. `cached_tokens` of the prompt were not run.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    usage: Usage | None = None
    state_hash: str | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
