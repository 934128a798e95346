"""Talks to the server over HTTP. Knows no endpoint."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """Status 0: nobody answered, `body` says why."""

    status: int
    body: str

    def data(self) -> dict[str, Any]:
        """The body as a JSON object; empty where it is none."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def call(host: str, port: int, path: str, *, body: Mapping[str, Any] | None = None, key: str = "", timeout_s: float) -> Answer:
    """GET, or POST where there is a body. The key goes into a header. Never raises for what the other side does."""
    return _call(http.client.HTTPConnection(host, port, timeout=timeout_s), path, body, key)


def call_tls(host: str, port: int, path: str, *, body: Mapping[str, Any] | None = None, key: str = "", timeout_s: float) -> Answer:
    """The same over TLS; the certificate is checked."""
    return _call(http.client.HTTPSConnection(host, port, timeout=timeout_s), path, body, key)


def _call(connection: http.client.HTTPConnection, path: str, body: Mapping[str, Any] | None, key: str) -> Answer:
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request("GET" if data is None else "POST", path, body=data, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, str(error) or type(error).__name__)
    finally:
        connection.close()
