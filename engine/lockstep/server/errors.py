"""Errors as clients see them: one class, one JSON form. Knows HTTP statuses, nothing of the engine's inside."""

from typing import Any, NoReturn

from lockstep.core.errors import BAD_REQUEST, CONTEXT_EXCEEDED, DRAINING, QUEUE_FULL, EngineDied, EngineRejected

RETRY_AFTER_S = 5
_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 405: "not_found_error", 413: "request_too_large",
    429: "overloaded_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


# Fields of chat as other dialects call them, for errors that are found once a request has become one of chat.
_CALLED = {
    "/v1/responses": (("`response_format.json_schema", "`text.format"), ("`response_format", "`text.format"), ("`messages`", "`input`"),
                      ("tool_call_id", "call_id")),
    "/v1/messages": (("`response_format.json_schema", "`output_config.format"), ("`response_format", "`output_config.format"),
                     ("tool_call_id", "tool_use_id")),
}  # fmt: skip


class ApiError(Exception):
    """A refusal or failure with its HTTP status. `message` says what was found, what was needed and what to change."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.kind = status, message, code, param, kind
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The OpenAI form."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic_body(self) -> dict[str, Any]:
        """The Anthropic form, whose types go with statuses."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def in_words_of(path: str, error: ApiError) -> dict[str, Any]:
    """The body of `error` as clients of the route at `path` read it."""
    body = error.anthropic_body() if path.startswith("/v1/messages") else error.body()
    told = body["error"]
    for ours, theirs in next((pairs for begin, pairs in _CALLED.items() if path.startswith(begin)), ()):
        told["message"] = told["message"].replace(ours, theirs)
        if told.get("param"):
            told["param"] = f"`{told['param']}`".replace(ours, theirs).strip("`")
    return body


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself has to change."""
    if code == CONTEXT_EXCEEDED:
        # Clients shorten a conversation on this word, and some are shown the message only.
        message = f"{message} ({CONTEXT_EXCEEDED})"
    return ApiError(400, message, param=param, code=code)


def refuse(where: str, words: str) -> NoReturn:
    """400: the field at `where`, of which `words` tell what is wrong."""
    raise bad_request(f"`{where}` {words}.", where)


def unavailable(message: str, code: str, *, retry: bool) -> ApiError:
    """503: the server cannot serve now; `retry` if waiting can help."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if retry else {}
    return ApiError(503, message, code=code, kind="service_unavailable_error", headers=headers)


def overloaded(message: str, retry_after_s: int) -> ApiError:
    """429 with Retry-After: all slots and the queue are taken. 0 seconds if nobody can tell how long."""
    headers = {"Retry-After": str(retry_after_s or RETRY_AFTER_S)}
    return ApiError(429, message, code="queue_full", kind="rate_limit_error", headers=headers)


def expired(deadline_s: float) -> ApiError:
    """504: the request's own deadline passed before its first token. Clients that retry by themselves are asked not to."""
    message = f"No token came within the {deadline_s:g} s of `deadline_s`; needed: more time, a higher `priority` or a shorter prompt."
    return ApiError(504, message, code="deadline_exceeded", param="deadline_s", kind="timeout_error", headers={"x-should-retry": "false"})


def engine_dead(cause: str) -> ApiError:
    """503: the engine process is gone and does not come back by itself."""
    return unavailable(f"The engine is down: {cause}. Restart the server.", "engine_dead", retry=False)


def failed(message: str) -> ApiError:
    """500: the engine could not finish a request it had taken."""
    return ApiError(500, message, code="engine_failed", kind="server_error")


def from_engine(error: EngineRejected | EngineDied, prompt_param: str) -> ApiError:
    """What a client sees of the engine's own words."""
    if isinstance(error, EngineDied):
        return engine_dead(str(error))
    match error.code:
        case code if code == CONTEXT_EXCEEDED:
            return bad_request(str(error), prompt_param, CONTEXT_EXCEEDED)
        case code if code == QUEUE_FULL:
            return overloaded(f"{error}.", error.retry_after_s)
        case code if code == DRAINING:
            return unavailable(f"{error}.", DRAINING, retry=True)
        case code if code == BAD_REQUEST:
            return bad_request(str(error))
    return failed(f"The engine refused the request ({error.code}): {error}")
