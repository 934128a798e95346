"""`GET /metrics` in the Prometheus text format."""

from fastapi import APIRouter, Request
from prometheus_client import generate_latest
from starlette.responses import Response

from lockstep.server.deployment import deployment
from lockstep.server.documents import errors

router = APIRouter(tags=["metrics"])
_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
_DOCUMENT = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus text"}}


@router.get("/metrics", response_class=Response, responses=_DOCUMENT | errors(401))
@router.get("/v1/metrics", response_class=Response, responses=_DOCUMENT | errors(401), include_in_schema=False)
async def metrics(request: Request) -> Response:
    """Every family of `meters`, under our prefix and vLLM's."""
    return Response(generate_latest(deployment(request).meters.registry), media_type=_FORMAT)
