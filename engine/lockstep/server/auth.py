"""Who may use the API: keys from a file that is read again when it changes, and peers of this machine. Knows no endpoint.

A request counts as local only if nothing hints at somebody behind it: forwarding headers and names in `Host` or `Origin` can take that
away, and only a proxy named by `--trusted-proxy` can give it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from lockstep.core.errors import LockstepError
from lockstep.server.errors import ApiError

LOOK_S = 1.0
MAX_FILE_BYTES = 1 << 20
OPEN_PATHS = frozenset({"/", "/health", "/v1/health"})
_HINTS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via", "cf-connecting-ip")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
log = logging.getLogger("lockstep.server")


class KeyFileError(LockstepError):
    """The key file cannot be used."""


def read_keys(path: Path) -> dict[str, bytes]:
    """Digests by label. One key a line, as `key` or `label: key`; `#` begins a comment line. Raises KeyFileError if there is no key."""
    try:
        with path.open("rb") as file:
            lines = [line.strip() for line in file.read(MAX_FILE_BYTES).decode("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(
            f"key file {path} is not readable ({error.__class__.__name__}); needed: a UTF-8 text file this user may read"
        ) from None
    digests: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            label, separator, key = (part.strip() for part in f"{line} ".partition(": "))
            label, key = (label, key) if separator else (f"line {number}", label)
            if not label or not key or label in digests:
                raise KeyFileError(f"key file {path}, line {number} has no label, no key or a label again; needed: `key` or `label: key`")
            digests[label] = _digest(key.encode())
    if not digests:
        raise KeyFileError(f"key file {path} holds no key; needed: one key a line, as `key` or `label: key`")
    return digests


class Keys:
    """The keys of one file, looked at once a second at most. A file that turned unusable closes what needs a key. Without a file: none."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._digests: dict[str, bytes] = {}
        self._seen: tuple[int, ...] | None = None
        self._looked_s = clock()
        if path is not None:
            self._seen = _state(path)
            self._digests = read_keys(path)
            if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                log.warning("key file %s can be read by others; needed: chmod 600", path)

    def label(self, offered: Iterable[bytes]) -> str | None:
        """Label of the first of the offered keys that is known; every known key is compared, in constant time."""
        self._look()
        for key in offered:
            digest, found = _digest(key), None
            for label, known in self._digests.items():
                if hmac.compare_digest(digest, known):
                    found = label
            if found is not None:
                return found
        return None

    def _look(self) -> None:
        if self._path is None or self._clock() - self._looked_s < LOOK_S:
            return
        self._looked_s = self._clock()
        if (state := _state(self._path)) == self._seen:
            return
        try:
            self._digests = read_keys(self._path)
            log.info("key file read again: %d keys", len(self._digests))
        except KeyFileError as error:
            self._digests = {}
            log.error("%s; until then no key is good", error)
        self._seen = state


class Access:
    """Decides about requests by `--auth`: `auto` asks everyone but local peers for a key, `key` everyone, `open` nobody."""

    def __init__(self, mode: str, keys: Keys, proxies: tuple[str, ...] = ()) -> None:
        self._mode, self._keys = mode, keys
        self._proxies = [ipaddress.ip_network(proxy, strict=False) for proxy in proxies]

    def label(self, request: HTTPConnection) -> str | None:
        """Label of the key a request carries, None for none or a wrong one."""
        return self._keys.label(_offered(request.headers))

    def admits(self, request: HTTPConnection) -> bool:
        """Whether everything is open to this request."""
        return self._mode == "open" or (self._mode == "auto" and self._is_local(request)) or self.label(request) is not None

    def check(self, request: HTTPConnection) -> None:
        """Raise ApiError 401 for a request that needs a key and has no good one."""
        # The path that was routed: `request.url` is put together from the Host header, which the client chooses.
        if request.scope["path"] in OPEN_PATHS or self.admits(request):
            return
        why = " Only programs on the server's own machine need none." if self._mode == "auto" else ""
        raise ApiError(
            401,
            f"No valid API key; needed: `Authorization: Bearer KEY` or `x-api-key: KEY` with a key of this server.{why}",
            code="invalid_api_key",
            kind="authentication_error",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _is_local(self, request: HTTPConnection) -> bool:
        peer = _address(request.client.host) if request.client else None
        if peer is None:
            return False
        if self._is_proxy(peer):
            return _is_loopback(self._behind(request.headers))
        return _is_loopback(peer) and not any(hint in request.headers for hint in _HINTS) and _is_from_here(request.headers)

    def _is_proxy(self, address: _Address) -> bool:
        return any(address in network for network in self._proxies)

    def _behind(self, headers: Headers) -> _Address | None:
        """Who a trusted proxy speaks for: the last address it forwards that is no trusted proxy. None if it does not tell."""
        told = ",".join(headers.getlist("x-forwarded-for")).split(",")
        for text in reversed(told):
            address = _address(text.strip())
            if address is None or not self._is_proxy(address):
                return address
        return None


def _is_loopback(address: _Address | None) -> bool:
    return address is not None and address.is_loopback


def _is_from_here(headers: Headers) -> bool:
    """False for a page of another site in a browser of this machine: by its `Origin`, or by a name that it made point to loopback.

    Nobody can make an address or a name without a dot point elsewhere."""
    host, origin = _name(f"//{headers.get('host', 'localhost')}"), headers.get("origin")
    is_fixed = _address(host) is not None or (host != "" and "." not in host)
    return (is_fixed or _is_loopback_name(host)) and (origin is None or _is_loopback_name(_name(origin)))


def _is_loopback_name(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(_address(name))


@lru_cache(1024)
def _name(url: str) -> str:
    """Host of an address, empty for one that cannot be read."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


@lru_cache(1024)
def _address(text: str) -> _Address | None:
    """IPv4 in IPv6 is unfolded."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address


def _offered(headers: Headers) -> Iterable[bytes]:
    """Keys as sent, Bearer first. Headers come as Latin-1, so encoding them back cannot fail."""
    for value in headers.getlist("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            yield token.strip().encode("latin-1")
    for value in headers.getlist("x-api-key"):
        yield value.strip().encode("latin-1")


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
