"""Whose prompts may share kept states: names that no client can guess or choose. Knows no endpoint."""

import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

from lockstep.core.errors import LockstepError

_SECRET_BYTES = 32
_NAME_DIGITS = 32


class NamespaceError(LockstepError):
    """The folder of kept states cannot be used."""


class Namespaces:
    """Names under a secret of this server. With a `folder` for states that outlive it, the secret lies there, readable to its owner only.

    Labels of keys mean something only within one key file, so states outlive a server only as long as `keys` stay the same."""

    def __init__(self, folder: Path | None = None, keys: Path | None = None) -> None:
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        if folder is not None:
            lasting = _lasting(folder, self._secret)
            self._secret = hmac.new(lasting, keys.read_bytes() if keys else b"", hashlib.sha256).digest()

    def of(self, label: str | None, salt: str | None) -> str:
        """Name for requests with a key of this label, None if they carry none, and this `cache_salt`. Others get another one."""
        told = json.dumps([label, salt]).encode()
        return hmac.new(self._secret, told, hashlib.sha256).hexdigest()[:_NAME_DIGITS]


def _lasting(folder: Path, offered: bytes) -> bytes:
    """The secret of `folder`, `offered` if it has none yet. Raises NamespaceError naming the folder."""
    path, part = folder / "secret", folder / "secret.part"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists() or path.stat().st_size != _SECRET_BYTES:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(offered)
            part.replace(path)
        return path.read_bytes()
    except OSError as error:
        raise NamespaceError(f"--spill-dir {folder}: {error.strerror}; needed: a folder this user may write to") from None
