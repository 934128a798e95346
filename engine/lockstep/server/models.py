"""`GET /v1/models`. Answers while the engine loads: clients ask here first."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from lockstep.server.deployment import Deployment, deployment
from lockstep.server.documents import ModelCard, ModelList, errors

router = APIRouter(tags=["models"])


@router.get("/v1/models", response_model=ModelList, responses=errors(401))
@router.get("/models", response_model=ModelList, responses=errors(401), include_in_schema=False)
async def list_models(request: Request) -> dict[str, Any]:
    """What is served."""
    site = deployment(request)
    # Anthropic's clients turn pages by the last three.
    return {"object": "list", "data": [_card(site)], "has_more": False, "first_id": site.options.name, "last_id": site.options.name}


@router.get("/v1/models/{name:path}", response_model=ModelCard, responses=errors(401, 404))
async def show_model(request: Request, name: str) -> dict[str, Any]:
    """One model by its id."""
    site = deployment(request)
    site.require_model(name)
    return _card(site)


def _card(site: Deployment) -> dict[str, Any]:
    return {
        "id": site.options.name,
        "object": "model",
        "created": site.created,
        "owned_by": "lockstep",
        "type": "model",
        "display_name": site.options.name,
        "created_at": datetime.fromtimestamp(site.created, UTC).isoformat(),
        "max_input_tokens": site.context,
        "max_tokens": site.options.max_tokens,
        "root": site.options.name,
        "max_model_len": site.context,
        "context_length": site.context,
        "input_modalities": ["text", "image", "video"] if site.media else ["text"],
    }
