"""Whose prompts may share kept states: names that no client can guess or choose. Knows no endpoint."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

_SECRET_BYTES = 32
_NAME_DIGITS = 32


class Namespaces:
    """Names under a secret of this server, which ends with it as the kept states do."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(_SECRET_BYTES)

    def of(self, label: str | None, salt: str | None) -> str:
        """Name for requests with a key of this label, None if they carry none, and this `cache_salt`. Others get another one."""
        told = json.dumps([label, salt]).encode()
        return hmac.new(self._secret, told, hashlib.sha256).hexdigest()[:_NAME_DIGITS]
