"""`POST /v1/completions`: the prompt continued as it stands."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from lockstep.server.body import read_model
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.documents import TextCompletion, inference_route
from lockstep.server.generation import Generation, PromptIds, check_ids, engine_request, tokenised
from lockstep.server.replies import Choice, reply_events, whole_reply
from lockstep.server.schema import CompletionBody
from lockstep.server.stream import EventStream, unless_client_leaves
from lockstep.text.reply import Delta, ReplyText

router = APIRouter(tags=["completions"])


@router.post("/v1/completions", **inference_route(CompletionBody, TextCompletion))
async def completions(request: Request) -> Response:
    """Continue a text or a list of token ids, without a chat template."""
    site = deployment(request)
    site.require_ready()
    body = await read_model(request, CompletionBody)
    site.require_model(body.model)
    ids = await _prompt_ids(site, body.prompt)
    prompt = PromptIds(ids, "prompt", site.namespace(request, body.cache_salt), owner=site.owner(request))
    engine = engine_request(site, body, prompt, "cmpl", body.max_tokens)
    generation = Generation(site, engine, ReplyText(site.tokenizer, body.stop or (), split_reasoning=False), "completions", "prompt")
    if body.stream:
        return EventStream(reply_events(generation, TextDialect(), site.options.name, body))
    return await unless_client_leaves(request, whole_reply(generation, TextDialect(), site.options.name, body))


async def _prompt_ids(site: Deployment, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, list):
        check_ids(site, prompt, "prompt")
        return prompt
    return await tokenised(lambda: site.tokenizer.encode(prompt, site.context), len(prompt), "prompt", site.context)


class TextDialect:
    """Text only; there is no role and no reasoning."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self) -> list[Choice]:
        return []

    def pieces(self, delta: Delta) -> list[Choice]:
        return [self._choice(delta.content)] if delta.content else []

    def idle(self) -> Choice:
        return self._choice("")

    def closing(self, reason: str) -> Choice:
        return self._choice("", reason)

    def whole(self, delta: Delta, reason: str) -> Choice:
        return self._choice(delta.content, reason)

    def _choice(self, text: str, reason: str | None = None) -> Choice:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
