"""`POST /v1/completions`: the prompt continued as it stands."""

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lockstep.server.body import aside, read_model
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.documents import TextCompletion, inference_route
from lockstep.server.generation import Generation, PromptIds, check_ids, engine_request, loop_limit, reply_id, tokenised
from lockstep.server.logprobs import Rows, TextLogprobs
from lockstep.server.replies import Choice, reply_events, whole_reply
from lockstep.server.schema import CompletionBody
from lockstep.server.stream import EventStream, unless_client_leaves
from lockstep.server.structured import reply_grammar
from lockstep.text.reply import Delta, ReplyText
from lockstep.text.tokenizer import Tokenizer

router = APIRouter(tags=["completions"])


@router.post("/v1/completions", **inference_route(CompletionBody, TextCompletion))
async def completions(request: Request) -> Response:
    """Continue a text or a list of token ids, without a chat template."""
    site = deployment(request)
    site.require_ready()
    body = await read_model(request, CompletionBody)
    site.require_model(body.model)
    return await unless_client_leaves(request, _reply(request, site, body))


async def _reply(request: Request, site: Deployment, body: CompletionBody) -> Response:
    name, choices = reply_id("cmpl-"), body.n or 1
    prompt_only = bool(body.echo) and body.reply_tokens == 0
    namespace, owner = site.namespace(request, body.cache_salt), site.owner(request)
    grammar = await reply_grammar(request, body)
    generations, dialects = list[Generation](), list[TextDialect]()
    for text in body.prompt:
        if generations:
            # Many prompts begin one a turn of the loop: others have theirs in between.
            await asyncio.sleep(0)
        prompt = PromptIds(await _prompt_ids(request, site, text), "prompt", namespace, owner=owner, grammar=grammar)
        echo = await aside(request, partial(site.tokenizer.decode, prompt.ids)) if body.echo else ""
        for choice in range(choices):
            place = len(generations)
            engine = engine_request(
                site, body, prompt, f"{name}/{place}" if place else name, 1 if prompt_only else body.reply_tokens, choice
            )
            reply = ReplyText(site.tokenizer, body.stop or (), split_reasoning=False, loop_limit=loop_limit(site, body))
            generations.append(Generation(site, engine, reply, "completions", "prompt", choice, 0 if prompt_only else None))
            dialects.append(TextDialect(site.tokenizer, place, echo, len(prompt.ids) if echo else 0))
    if body.stream:
        return EventStream(reply_events(generations, dialects, site.options.name, body))
    return await whole_reply(generations, dialects, site.options.name, body)


async def _prompt_ids(request: Request, site: Deployment, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, list):
        await aside(request, partial(check_ids, site, prompt, "prompt"))
        return prompt
    return await tokenised(request, lambda: site.tokenizer.encode(prompt, site.context), "prompt", site.context)


class TextDialect:
    """Text only; there is no role and no reasoning. `echo` comes before the reply."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, index: int = 0, echo: str = "", echoed: int = 0) -> None:
        self._index, self._echo, self._logprobs = index, echo, TextLogprobs(tokenizer, echoed)

    def opening(self) -> list[Choice]:
        return [self._choice(self._echo)] if self._echo else []

    def pieces(self, delta: Delta) -> list[Choice]:
        return [self._choice(delta.content)] if delta.content else []

    def idle(self) -> Choice:
        return self._choice("")

    def closing(self, reason: str) -> Choice:
        return self._choice("", reason)

    def whole(self, delta: Delta, reason: str) -> Choice:
        return self._choice(self._echo + delta.content, reason)

    def logprobs(self, rows: Rows) -> dict[str, Any] | None:
        return self._logprobs.tell(rows)

    def _choice(self, text: str, reason: str | None = None) -> Choice:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": reason}
