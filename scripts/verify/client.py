"""Asks one question of an OpenAI-compatible server and reads the reply. Knows the wire shape, no check and no threshold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from failure import Failure
from verify import http
from verify.judge import Reply

ASK_S, PROBE_S = 600.0, 20.0
CHECK = "check the URL, the key and that the server is ready"
OFF: Mapping[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


@dataclass(frozen=True)
class Server:
    """A server as it presents itself. `context` is 0 where it does not say; `has_vision` is False unless it says so."""

    host: str
    port: int
    prefix: str
    secure: bool
    key: str
    model: str = ""
    context: int = 0
    has_vision: bool = False


def parse_url(base_url: str, key: str) -> Server:
    """`http://HOST:PORT[/v1]`. Raises Failure E_CONFIG for anything else."""
    try:
        parts = urlsplit(base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise Failure("E_CONFIG", found=f"--base-url {base_url!r}", needed="a URL such as http://127.0.0.1:8022 or https://HOST/v1")
    return Server(parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"), parts.scheme == "https", key)


def probe(server: Server) -> Server:
    """Reads the model list and the health page. Raises Failure E_API if no model is listed or the server says that it is loading."""
    listed = _call(server, "/v1/models", None, PROBE_S)
    models = listed.data().get("data")
    if listed.status != 200 or not isinstance(models, list) or not models:
        said = f"status {listed.status}: {listed.body[:200]}" if listed.status else listed.body
        raise Failure(
            "E_API", found=f"{server.host}:{server.port}/v1/models gave {said}", needed="a server that lists its model", remedy=CHECK
        )
    health = _call(server, "/health", None, PROBE_S).data()
    if health.get("status") == "loading":
        raise Failure(
            "E_API", found=f"{server.host}:{server.port} is still loading", needed="a server that answers", remedy="ask again later"
        )
    context = models[0].get("max_model_len") or health.get("context_length") or 0
    return Server(
        server.host,
        server.port,
        server.prefix,
        server.secure,
        server.key,
        model=str(models[0].get("id", "")),
        context=context if isinstance(context, int) else 0,
        has_vision=says_vision(models[0]) or says_vision(health),
    )


def says_vision(told: Mapping[str, Any]) -> bool:
    """`vision: true`, `vision: {"enabled": true}`, or an input modality `image`."""
    vision = told.get("vision")
    if isinstance(vision, dict):
        return bool(vision.get("enabled"))
    return vision is True or "image" in (told.get("input_modalities") or ())


def ask(server: Server, request: Mapping[str, Any], more: Mapping[str, Any] = OFF) -> Reply:
    """One greedy chat completion; what goes wrong stands in `error`. `more` adds fields; by default it switches thinking off."""
    body = {"model": server.model, "temperature": 0, "stream": False, **request, **more}
    return read_reply(_call(server, "/v1/chat/completions", body, ASK_S))


def read_reply(answer: http.Answer) -> Reply:
    """What a chat completion says; where the answer is none, that stands in `error`."""
    if answer.status != 200:
        return Reply(error=f"status {answer.status}: {' '.join(answer.body.split())[:200]}")
    try:
        return _reply(answer.data())
    except (KeyError, IndexError, TypeError, AttributeError):
        return Reply(error=f"no chat completion: {' '.join(answer.body.split())[:200]}")


def _reply(data: Mapping[str, Any]) -> Reply:
    choice = data["choices"][0]
    message = choice["message"]
    calls = tuple((call["function"]["name"], _arguments(call["function"]["arguments"])) for call in message.get("tool_calls") or ())
    usage, figures = data.get("usage") or {}, data.get("lockstep") or {}
    return Reply(
        message.get("content") or "",
        message.get("reasoning_content") or message.get("reasoning") or "",
        calls,
        str(choice.get("finish_reason")),
        usage.get("prompt_tokens") or 0,
        usage.get("completion_tokens") or 0,
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        figures.get("drafted_tokens") or 0,
        str(figures.get("token_sha") or ""),
    )


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def health_of(server: Server) -> dict[str, Any]:
    """What the server says of itself; empty where it says nothing."""
    return _call(server, "/health", None, PROBE_S).data()


def _call(server: Server, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> http.Answer:
    call = http.call_tls if server.secure else http.call
    return call(server.host, server.port, server.prefix + path, body=body, key=server.key, timeout_s=timeout_s)
