"""API keys: read once from a file, compared as digests in constant time. Knows no endpoint."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from starlette.requests import Request

from lockstep.core.errors import LockstepError
from lockstep.server.errors import ApiError


class KeyFileError(LockstepError):
    """The key file cannot be used."""


class Keys:
    """Digests of the accepted keys by label. Without a file everything is open."""

    def __init__(self, labelled: dict[str, str] | None) -> None:
        self._digests = None if labelled is None else {label: _digest(key.encode()) for label, key in labelled.items()}

    @classmethod
    def load(cls, path: Path | None) -> Keys:
        """One key a line, as `key` or `label: key`; `#` begins a comment line. Raises KeyFileError if there is no key."""
        if path is None:
            return cls(None)
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(
                f"key file {path} is not readable ({error.__class__.__name__}); needed: a UTF-8 text file this user may read"
            ) from None
        labelled: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if line and not line.startswith("#"):
                label, separator, key = line.partition(": ")
                labelled[label if separator else f"line {number}"] = (key if separator else line).strip()
        if not labelled or not all(labelled.values()):
            raise KeyFileError(f"key file {path} holds no key or an empty one; needed: one key a line, as `key` or `label: key`")
        return cls(labelled)

    @property
    def needed(self) -> bool:
        """True if requests have to carry a key."""
        return self._digests is not None

    def label(self, request: Request) -> str | None:
        """Label of the key a request carries, None for none or a wrong one. Bearer wins over x-api-key."""
        digest = _digest(_offered(request))
        found = None
        for label, known in (self._digests or {}).items():
            if hmac.compare_digest(digest, known):
                found = label
        return found

    def check(self, request: Request) -> None:
        """Raise ApiError 401 for a request without a good key."""
        if self.needed and self.label(request) is None:
            raise ApiError(
                401,
                "No valid API key; needed: `Authorization: Bearer KEY` or `x-api-key: KEY` with a key of this server.",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _offered(request: Request) -> bytes:
    """The key's bytes as sent. Headers come as Latin-1, so encoding them back cannot fail."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" and token.strip() else request.headers.get("x-api-key", "")
    return key.encode("latin-1")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
