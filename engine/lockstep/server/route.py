"""How a request reaches its endpoint: past the key, straight to it. Knows no endpoint."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from lockstep.server.deployment import deployment
from lockstep.server.stream import Json


class Route(APIRoute):
    """Asks who is there, then calls the endpoint with the request and the names in its path: nothing else is looked for in a request."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request of this route."""
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            deployment(request).access.check(request)
            found = await endpoint(request, **request.path_params)
            return found if isinstance(found, Response) else Json(found)

        return handle
