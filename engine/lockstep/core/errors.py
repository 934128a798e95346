"""Errors that cross module borders, and the words that name them on the wire."""

CONTEXT_EXCEEDED = "context_length_exceeded"
QUEUE_FULL = "queue_full"
DRAINING = "draining"
BAD_REQUEST = "bad_request"
# The window does not fit this machine's memory: what a start can end with.
WINDOW_TOO_LARGE = "window_too_large"


class LockstepError(Exception):
    """Base of every error this package raises on purpose. The text says what was found, what was needed and what to change.

    `code` is a word for programs, if they should know the error.
    """

    code: str = ""


class EngineRejected(LockstepError):
    """The engine did not take a request. `code` is one of the words above; `retry_after_s` when to try again, 0 if nobody knows."""

    def __init__(self, code: str, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.code, self.retry_after_s = code, retry_after_s


class EngineDied(LockstepError):
    """The engine process is gone. The text is its cause, for people."""

    def __init__(self, cause: str, code: str = "") -> None:
        super().__init__(cause)
        self.code = code
