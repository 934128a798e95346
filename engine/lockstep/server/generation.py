"""One reply: from a validated request to the engine and back as text, a delta a round. Knows no endpoint's JSON."""

import asyncio
import hashlib
import logging
import secrets
import struct
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from starlette.requests import Request

from lockstep.core.errors import CONTEXT_EXCEEDED, QUEUE_FULL, EngineDied, EngineRejected
from lockstep.core.types import EngineRequest, FinishReason, Grammar, Picture, RoundEvent, Sampling, TokenLogprob, Usage
from lockstep.server.body import ARRIVED_S, Result, aside
from lockstep.server.deployment import Deployment
from lockstep.server.errors import ApiError, bad_request, expired, failed, from_engine, overloaded, unavailable
from lockstep.server.schema import GenerationBody
from lockstep.text.errors import TextError, TooManyTokens
from lockstep.text.reply import Delta, ReplyText

TOP_K = 20
# Below this the noise can no longer reorder distinct logits in float32, so the request is served as greedy.
GREEDY_BELOW = 1e-4
# Who has begun to answer asks again so often where the queue is full.
AGAIN_S = 0.2

# The `x-request-id` of the request that is served.
REQUEST_ID = ContextVar("request_id", default="-")

log = logging.getLogger("lockstep.server")


async def tokenised(request: Request, work: Callable[[], Result], param: str, context: int) -> Result:
    """Run text work, as `aside` does. Raises ApiError 400 for a text that cannot be used or is far too long."""
    try:
        return await aside(request, work)
    except TooManyTokens as error:
        if error.limit != context:
            raise bad_request(f"{error}. Shorten the {param}.", param) from None
        message = f"This model's maximum context length is {context} tokens. However, you requested more than {error.at_least} tokens"
        raise bad_request(f"{message} in the {param}. Shorten the {param}.", param, CONTEXT_EXCEEDED) from None
    except TextError as error:
        raise bad_request(f"{error}.", param) from None


def check_ids(site: Deployment, ids: Sequence[int], param: str) -> None:
    """Raise ApiError 400 for an id that no token has."""
    size = site.tokenizer.size
    worst = next((bound for bound in (min(ids, default=0), max(ids, default=0)) if not 0 <= bound < size), None)
    if worst is not None:
        shown = worst if abs(worst) < 10**30 else "of more than 30 digits"
        raise bad_request(f"`{param}` holds the id {shown}; needed: ids from 0 to {size - 1}, the vocabulary of this model.", param)


@dataclass(frozen=True)
class PromptIds:
    """A prompt and what is known of it: the field it came in, who may share its states (`Namespaces`), where others may branch off.

    `owner` is the label of the key it came with. `close_after` and `grammar` see `EngineRequest`."""

    ids: Sequence[int]
    param: str
    namespace: str
    marks: tuple[int, ...] = ()
    owner: str = ""
    pictures: tuple[Picture, ...] = ()
    close_after: tuple[int, int] | None = None
    grammar: Grammar | None = None

    @cached_property
    def digest(self) -> bytes:
        """Eight bytes that stand for the prompt, pictures included, for which ids are equal. Made once: long prompts take a while."""
        packed = struct.pack(f"<{len(self.ids)}I", *self.ids)
        return hashlib.blake2b(packed + "".join(picture.digest for picture in self.pictures).encode(), digest_size=8).digest()


def engine_request(
    site: Deployment, body: GenerationBody, prompt: PromptIds, name: str, wanted: int | None, choice: int = 0
) -> EngineRequest:
    """The engine's form of a request. `wanted`: reply tokens asked for; None or 0 takes the default, cut to the room left.

    `name` is its id. Of several choices each has a seed of its own.

    Raises ApiError 400 if prompt and reply do not fit the window."""
    prompt_ids, param = prompt.ids, prompt.param
    room = site.context - len(prompt_ids)
    if room < (wanted or 1):
        asked = len(prompt_ids) + (wanted or 1)
        raise bad_request(
            f"This model's maximum context length is {site.context} tokens. However, you requested {asked} tokens "
            f"({len(prompt_ids)} in the {param}, {wanted or 1} in the completion). Shorten the {param} or lower max_tokens.",
            param,
            CONTEXT_EXCEEDED,
        )
    max_tokens = wanted or min(site.options.max_tokens, room)
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise bad_request(
            f"`min_tokens` is {min_tokens}, the reply may have {max_tokens} tokens; needed: no more than those.", "min_tokens"
        )
    check_ids(site, body.stop_token_ids or (), "stop_token_ids")
    return EngineRequest(
        id=name,
        prompt_ids=tuple(prompt_ids),
        sampling=sampling(site, body, prompt, choice),
        max_tokens=max_tokens,
        stop_ids=frozenset(site.generation.eos_token_ids) | frozenset(body.stop_token_ids or ()),
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        draft=body.draft is not False,
        namespace=prompt.namespace,
        marks=prompt.marks,
        owner=prompt.owner,
        priority=body.priority or 0,
        deadline_s=body.deadline_s or 0.0,
        pictures=prompt.pictures,
        logprobs=body.alternatives,
        prompt_logprobs=body.prompt_alternatives,
        close_after=prompt.close_after,
        grammar=prompt.grammar,
    )


def loop_limit(site: Deployment, body: GenerationBody) -> int:
    """As ReplyText takes it. Who asks for a length gets it."""
    return 0 if body.loop_guard is False or body.ignore_eos or body.min_tokens else site.options.guard_loops


def reply_id(prefix: str) -> str:
    """An id nobody can guess: `prefix` and 24 hex digits."""
    return f"{prefix}{secrets.token_hex(12)}"


def sampling(site: Deployment, body: GenerationBody, prompt: PromptIds, choice: int) -> Sampling:
    """Sampling settings: the request's, then the checkpoint's, top_k 20. The default seed is a function of the prompt."""
    temperature = site.generation.temperature if body.temperature is None else body.temperature
    seed = int.from_bytes(prompt.digest, "big") if body.seed is None else body.seed % (1 << 64)
    if choice:
        seed = int.from_bytes(hashlib.blake2b(struct.pack("<QI", seed, choice), digest_size=8).digest(), "big")
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    check_ids(site, list(bias), "logit_bias")
    return Sampling(
        temperature=0.0 if temperature <= GREEDY_BELOW else temperature,
        top_k=TOP_K if body.top_k is None else max(body.top_k, 0),
        top_p=site.generation.top_p if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=seed,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=tuple(sorted((token, value) for token, value in bias.items() if value)),
    )


class Generation:
    """A reply under way. Iterate `deltas` to its end, then read `finish_reason` and `figures()`.

    `choice` counts those of one prompt. `goes_on` once one of the same HTTP request has begun: what has begun must not end in a 429, so
    from then on a full queue is waited for. `shown` bounds the reply's tokens below what the engine makes: it always makes one, for a
    request that wants its prompt only too."""

    def __init__(
        self,
        site: Deployment,
        request: EngineRequest,
        text: ReplyText,
        route: str,
        prompt_param: str,
        choice: int = 0,
        shown: int | None = None,
    ) -> None:
        self.request, self.text, self.choice = request, text, choice
        self._shown, self._told, self.goes_on = shown, 0, False
        self.cached_tokens = 0
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._site, self._route, self._param = site, route, prompt_param
        self._began_s = ARRIVED_S.get(time.monotonic())
        self._first_s = self._last_s = 0.0
        self._engine_usage = Usage()
        self._state_hash: str | None = None
        self.finish_reason = ""

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """One delta for each round that brought tokens, empty if its text is held back. Raises ApiError.

        A closed iterator ends the request in the engine."""
        site = self._site
        site.require_ready()
        limit = self.slots + site.options.max_queued
        if site.in_flight >= limit and not self.goes_on:
            site.meters.count("requests", self._route, "429", self.request.owner)
            wait_s = site.engine.snapshot.retry_after_s if site.engine.snapshot else 0
            raise overloaded(f"{site.in_flight} requests are running or waiting, as many as this server takes; try again later.", wait_s)
        site.in_flight += 1
        status = "cancelled"
        try:
            async with aclosing(self._rounds()) as events:
                async for event in events:
                    delta = self._take(event)
                    if event.token_ids:
                        yield delta
            if tail := self._finish():
                yield tail
            status = "200"
        except (EngineRejected, EngineDied) as error:
            refusal = from_engine(error, self._param)
            status = str(refusal.status)
            raise refusal from None
        except ApiError as error:
            status = str(error.status)
            raise
        except Exception:
            status = "500"
            raise
        finally:
            site.in_flight -= 1
            self._record(status)

    async def _rounds(self) -> AsyncGenerator[RoundEvent, None]:
        """Of the engine, once it takes the request."""
        while True:
            try:
                async with aclosing(self._site.engine.submit(self._in_time())) as events:
                    async for event in events:
                        yield event
                return
            except EngineRejected as error:
                if error.code != QUEUE_FULL or not self.goes_on:
                    raise
            await asyncio.sleep(AGAIN_S)

    @property
    def slots(self) -> int:
        """Requests the engine runs at once."""
        return self._site.engine.facts.slots if self._site.engine.facts else self._site.options.parallel

    def _in_time(self) -> EngineRequest:
        """The request, with less time for the engine if it had to wait for other choices first. Raises ApiError 504."""
        deadline_s = self.request.deadline_s
        left_s = self._began_s + deadline_s - time.monotonic()
        if deadline_s and left_s <= 0:
            raise expired(deadline_s)
        return replace(self.request, deadline_s=left_s) if deadline_s else self.request

    def fresh(self) -> list[tuple[int, TokenLogprob | None]]:
        """Tokens of the reply with their logarithms, those that were not returned before."""
        start, self._told = self._told, len(self.logprobs)
        return list(zip(self.text.tokens[start:], self.logprobs[start:], strict=False))

    def _take(self, event: RoundEvent) -> Delta:
        had_ended, known = self.text.has_ended, len(self.text.tokens)
        delta = self.text.feed(event.token_ids if self._shown is None else event.token_ids[: self._shown - known])
        self.logprobs += event.logprobs[: len(self.text.tokens) - known]
        self.prompt_logprobs = self.prompt_logprobs or event.prompt_logprobs
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        if event.token_ids and not had_ended:
            self._time(len(event.token_ids))
        if self.text.has_ended and not had_ended and event.finish is None:
            self._site.engine.cancel(self.request.id)
        if event.finish is not None:
            self._end(event)
        return delta

    def _finish(self) -> Delta:
        """What was held back; only then is it known whether the reply ended on a call or on a stop string."""
        if self.text.cycle:
            self._site.meters.count("loops")
            log.warning("%s was ended: it repeated %d tokens over and over", self.request.id, self.text.cycle)
        tail = self.text.finish(is_cut=self.finish_reason == FinishReason.LENGTH)
        if self.text.stopped is not None:
            self.finish_reason = "stop"
        if self.text.calls and self.text.thought:
            self._site.template.thoughts.put(self.request.namespace, self.text.calls[0].id, self.text.thought)
        if self.text.calls and self.finish_reason == FinishReason.STOP:
            self.finish_reason = "tool_calls"
        return tail

    def _time(self, tokens: int) -> None:
        now = time.monotonic()
        if self._first_s:
            self._site.meters.observe("between_s", (now - self._last_s) / tokens)
        else:
            self._first_s = now
            self._site.meters.observe("first_token_s", now - self._began_s)
        self._last_s = now

    def _end(self, event: RoundEvent) -> None:
        self._engine_usage = event.usage or self._engine_usage
        self.cached_tokens = max(self.cached_tokens, self._engine_usage.cached_tokens)
        if self.text.has_ended:
            # The engine is some tokens past a stop, an only call or a loop, how many depends on the clock: its state is not this reply's.
            self.finish_reason = "length" if self.text.cycle else "stop"
            return
        self._state_hash = event.state_hash
        match event.finish:
            case FinishReason.STOP | FinishReason.LENGTH:
                self.finish_reason = str(event.finish)
            case FinishReason.EXPIRED:
                raise expired(self.request.deadline_s)
            case FinishReason.CANCELLED:
                raise unavailable("The server ended this request before its reply was complete; send it again.", "cancelled", retry=True)
            case _:
                raise failed(f"The engine could not finish this request: {event.error or 'no cause given'}. Send it again.")

    def _record(self, status: str) -> None:
        meters, spent_s = self._site.meters, time.monotonic() - self._began_s
        meters.count("requests", self._route, status, self.request.owner)
        if status == "200":
            meters.count("finished", meters.model, self.finish_reason)
            meters.observe("total_s", spent_s)
            for key in ("queued_s", "prefill_s", "decode_s"):
                meters.observe(key, getattr(self._engine_usage, key))
            meters.observe("inference_s", self._engine_usage.prefill_s + self._engine_usage.decode_s)
            meters.observe("most_tokens", self.request.max_tokens)
            meters.observe("prompt_tokens", len(self.request.prompt_ids))
            meters.observe("reply_tokens", len(self.text.tokens))
        elif status == "cancelled":
            meters.count("left")
        log.info(
            "%s %s %s: prompt %d, reply %d tokens, %s, %.3f s, x-request-id %s", self.request.id, self._route, status,
            len(self.request.prompt_ids), len(self.text.tokens), self.finish_reason or "-", spent_s, REQUEST_ID.get(),
        )  # fmt: skip

    def figures(self, with_ids: bool) -> dict[str, Any]:
        """Our own block: times in seconds, rounds, drafting, and the hash that names the reply's ids."""
        usage, tokens = self._engine_usage, self.text.tokens
        figures: dict[str, Any] = {
            "token_sha": hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:12],
            "time_to_first_token_s": round(self._first_s - self._began_s, 6) if self._first_s else None,
            "tokens_per_s": round(len(tokens) / usage.decode_s, 3) if usage.decode_s > 0 else None,
            "queued_s": round(usage.queued_s, 6),
            "prefill_s": round(usage.prefill_s, 6),
            "decode_s": round(usage.decode_s, 6),
            "rounds": usage.rounds,
            "drafted_tokens": usage.drafted_tokens,
            "accepted_tokens": usage.accepted_tokens,
        }
        if self._state_hash is not None:
            figures["state_hash"] = self._state_hash
        if self.text.stopped is not None:
            figures["stop_sequence"] = self.text.stopped
        if self.text.cycle:
            figures["loop_tokens"] = self.text.cycle
        if self.request.close_after:
            figures["thinking_budget_used_up"] = self._was_closed(*self.request.close_after)
        if with_ids:
            figures |= {"prompt_token_ids": list(self.request.prompt_ids), "token_ids": list(tokens)}
        return figures

    def _was_closed(self, after: int, token: int) -> bool:
        """True if the token that was due `after` others came when it was due."""
        return len(self.text.tokens) > after and token not in self.text.tokens[:after]
