"""`POST /tokenize` and `/detokenize`: the very ids a generation would use. Needs no engine."""

from typing import Any

from fastapi import APIRouter, Request

from lockstep.server.body import aside, read_model
from lockstep.server.chat import chat_prompt
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.documents import Text, TokenizerInfo, Tokens, body_of, errors
from lockstep.server.generation import check_ids, tokenised
from lockstep.server.schema import ChatBody, DetokenizeBody, TokenizeBody
from lockstep.server.stream import Json

router = APIRouter(tags=["tokens"])
# Texts past the window may be counted, up to this; an encoding takes hundreds of bytes a token.
COUNTED_TOKENS = 1 << 20
_ERRORS = errors(400, 401, 404, 413, 415)


@router.post("/tokenize", response_model=Tokens, responses=_ERRORS, openapi_extra=body_of(TokenizeBody))
@router.post("/v1/tokenize", response_model=Tokens, responses=_ERRORS, openapi_extra=body_of(TokenizeBody))
async def tokenize(request: Request) -> Json:
    """Ids of a text, or of a conversation as a generation would render it."""
    site = deployment(request)
    body = await read_model(request, TokenizeBody)
    site.require_model(body.model)
    limit = max(site.context, COUNTED_TOKENS)
    if body.messages is not None:
        owner = site.namespace(request, None)
        ids = (await chat_prompt(request, body, body.messages, limit, body.add_generation_prompt is not False, owner)).ids
    else:
        text = body.prompt or ""
        ids = await tokenised(request, lambda: site.tokenizer.encode(text, limit), "prompt", site.context)
    reply: dict[str, Any] = {"count": len(ids), "max_model_len": site.context, "tokens": ids}
    if body.return_token_strs:
        reply["token_strs"] = await aside(request, lambda: [site.tokenizer.decode([token]) for token in ids])
    return Json(reply)


async def conversation_tokens(request: Request, site: Deployment, chat: ChatBody) -> int:
    """Tokens of the prompt that a generation would render. Raises ApiError."""
    limit, owner = max(site.context, COUNTED_TOKENS), site.namespace(request, chat.cache_salt)
    return len((await chat_prompt(request, chat, chat.messages, limit, not chat.continue_final_message, owner)).ids)


@router.get("/tokenizer_info", response_model=TokenizerInfo, responses=errors(401))
@router.get("/v1/tokenizer_info", response_model=TokenizerInfo, responses=errors(401))
async def tokenizer_info(request: Request) -> Json:
    """What clients that tokenise for themselves ask for. There is no begin token: the chat template writes its own."""
    site = deployment(request)
    end = site.tokenizer.decode(site.generation.eos_token_ids[:1])
    told = {"eos_token": end, "bos_token": None, "pad_token": end, "chat_template": site.template.source}
    return Json(told | {"vocab_size": site.tokenizer.size, "max_model_len": site.context})


@router.post("/detokenize", response_model=Text, responses=_ERRORS, openapi_extra=body_of(DetokenizeBody))
@router.post("/v1/detokenize", response_model=Text, responses=_ERRORS, openapi_extra=body_of(DetokenizeBody))
async def detokenize(request: Request) -> Json:
    """Text of ids, control tokens by their spelling."""
    site = deployment(request)
    body = await read_model(request, DetokenizeBody)
    site.require_model(body.model)

    def text() -> str:
        check_ids(site, body.tokens, "tokens")
        return site.tokenizer.decode(body.tokens)

    return Json({"prompt": await aside(request, text)})
