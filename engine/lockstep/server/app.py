"""The ASGI application: routes, keys, error forms, the OpenAPI document. Knows endpoints by their routers only."""

import asyncio
import re
import secrets
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import lockstep
from lockstep.server import chat, completions, health, messages, metrics, models, page, responses, tokenize
from lockstep.server.deployment import Deployment, deployment
from lockstep.server.errors import ApiError, failed, in_words_of
from lockstep.server.generation import REQUEST_ID
from lockstep.server.messages_form import MessagesBody
from lockstep.server.responses_form import ResponsesBody
from lockstep.server.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from lockstep.server.stream import Json

_BODIES = (ChatBody, CompletionBody, ResponsesBody, MessagesBody, TokenizeBody, DetokenizeBody)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def build_app(site: Deployment) -> ASGIApp:
    """The application of one deployment. Every route asks who is there; `auth.OPEN_PATHS` are all that answer anyone."""
    routers = [family.router for family in (chat, completions, responses, messages, models, tokenize, health, metrics, page)]
    routes = [_route(route) for router in [*routers, _document_router(routers)] for route in router.routes if isinstance(route, APIRoute)]
    shown = {ApiError: _show_api_error, HTTPException: _show_http_error, Exception: _show_fault}
    app = Starlette(routes=routes, exception_handlers=shown)
    app.router.redirect_slashes = False
    app.state.deployment = site
    origins = site.options.cors_origin
    if not origins:
        return Envelope(app)
    # Without credentials: pages of other sites bring their key, never a browser's cookies.
    told = ("x-request-id", "retry-after")
    return Envelope(CORSMiddleware(app, origins, allow_methods=("*",), allow_headers=("*",), expose_headers=told))


def _route(described: APIRoute) -> Route:
    """A route as it is served: past the key, straight to its endpoint with the request and the names in its path."""
    endpoint = described.endpoint

    async def handle(request: Request) -> Response:
        deployment(request).access.check(request)
        found = await endpoint(request, **request.path_params)
        return found if isinstance(found, Response) else Json(found)

    return Route(described.path, handle, methods=list(described.methods or ()))


def _document_router(routers: Sequence[APIRouter]) -> APIRouter:
    """FastAPI describes what is served, and serves nothing."""
    router = APIRouter(include_in_schema=False)
    document: dict[str, Any] = {}

    @router.get("/openapi.json")
    async def openapi(request: Request) -> Json:
        if not document:
            told = FastAPI(title="lockstep", version=lockstep.__version__)
            for each in routers:
                told.include_router(each)
            _, bodies = models_json_schema([(body, "validation") for body in _BODIES], ref_template="#/components/schemas/{model}")
            document.update(told.openapi())
            document["components"]["schemas"] |= bodies["$defs"]
        return Json(document)

    return router


async def _show_api_error(request: Request, error: Exception) -> Json:
    assert isinstance(error, ApiError)
    deployment(request).note(request.scope["path"], error)
    return Json(in_words_of(request.scope["path"], error), error.status, error.headers)


async def _show_http_error(request: Request, error: Exception) -> Response:
    """The router's own refusals. OPTIONS is told the method; pages of other sites get no leave beyond that."""
    assert isinstance(error, HTTPException)
    method, path = request.method, request.scope["path"][:80]
    allowed = ""
    if error.status_code == 405:
        # The router names the methods of one route only, and a path may have several.
        routes = [route for route in request.app.routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE]
        allowed = ", ".join(sorted({method for route in routes for method in route.methods or ()}))
    headers = {"Allow": allowed} if allowed else {}
    if method == "OPTIONS" and allowed:
        return Response(status_code=204, headers=headers)
    if allowed:
        message = f"{method} is not served at {path}; needed: {allowed}."
    else:
        message = f"There is nothing at {path}. GET /openapi.json lists what is served."
    shown = ApiError(
        error.status_code, message, code="method_not_allowed" if error.status_code == 405 else "not_found", kind="not_found_error"
    )
    return Json(in_words_of(request.url.path, shown), shown.status, headers)


async def _show_fault(request: Request, error: Exception) -> Json:
    shown = failed("The server failed inside; its log has the details. Send the request again.")
    return Json(in_words_of(request.url.path, shown), shown.status)


class Envelope:
    """Outermost layer: every response carries `x-request-id`, and HEAD is answered as GET without a body.

    Requests with work begin one a turn of the event loop, so that many at once hold up neither health nor streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._turn = app, asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        offered = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = offered if _REQUEST_ID.fullmatch(offered) else secrets.token_hex(8).encode()
        REQUEST_ID.set(request_id.decode("ascii"))
        is_head = scope["method"] == "HEAD"
        inner = {**scope, "method": "GET"} if is_head else scope
        if scope["method"] == "POST":
            await self._turn.acquire()
            asyncio.get_running_loop().call_soon(self._turn.release)

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id)]
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app(inner, receive, labelled)
