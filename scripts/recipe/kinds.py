"""Kinds of setting values: each reads one text, or says what it needed. Knows no setting by name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

MAX_DIGITS = 18
HOSTNAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\Z")
NO_GPU = "none"

Value = str | int | tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """`read` turns text into a value or raises ValueError; `allowed` is the sentence part that says which texts it takes."""

    allowed: str
    read: Callable[[str], Value]


def _refuse(allowed: str) -> ValueError:
    return ValueError(allowed)


def _digits(text: str) -> int | None:
    if not re.fullmatch(r"0|[1-9][0-9]*", text) or len(text) > MAX_DIGITS:
        return None
    return int(text)


def integer(low: int, high: int) -> Kind:
    """Decimal digits without sign or leading zero, `low` to `high` inclusive."""
    allowed = f"a whole number from {low:,} to {high:,}".replace(",", "")

    def read(text: str) -> int:
        number = _digits(text)
        if number is None or not low <= number <= high:
            raise _refuse(allowed)
        return number

    return Kind(allowed, read)


def choice(*words: str) -> Kind:
    allowed = "one of " + ", ".join(words)

    def read(text: str) -> str:
        if text not in words:
            raise _refuse(allowed)
        return text

    return Kind(allowed, read)


def matching(pattern: str, allowed: str) -> Kind:
    """Text that matches `pattern` as a whole."""
    compiled = re.compile(pattern)

    def read(text: str) -> str:
        if not compiled.fullmatch(text):
            raise _refuse(allowed)
        return text

    return Kind(allowed, read)


def folder() -> Kind:
    """An absolute path. A colon would split a container's mount, a control character any log line."""
    allowed = "an absolute path without ':' or control characters"

    def read(text: str) -> str:
        if not text.startswith("/") or ":" in text or any(ord(c) < 32 or ord(c) == 127 for c in text):
            raise _refuse(allowed)
        return text.rstrip("/") or "/"

    return Kind(allowed, read)


def optional(kind: Kind) -> Kind:
    """The same kind, or nothing at all."""
    return Kind(f"empty or {kind.allowed}", lambda text: kind.read(text) if text else "")


def address() -> Kind:
    allowed = "an IPv4 or IPv6 address or a host name"

    def read(text: str) -> str:
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            if not HOSTNAME.match(text):
                raise _refuse(allowed) from None
            return text

    return Kind(allowed, read)


def gpus(count: int) -> Kind:
    """`count` distinct device numbers separated by commas, or the word `none`: () stands for no GPU."""
    allowed = f"{count} different device numbers such as {','.join(str(i) for i in range(count))}, or {NO_GPU}"

    def read(text: str) -> tuple[int, ...]:
        if text == NO_GPU:
            return ()
        numbers = [_digits(part) for part in text.split(",")]
        chosen = tuple(number for number in numbers if number is not None)
        if len(chosen) != len(numbers) or len(chosen) != count or len(set(chosen)) != count:
            raise _refuse(allowed)
        return chosen

    return Kind(allowed, read)


FLAG = choice("0", "1")
PRINTABLE = matching(r"[\x21-\x7e]+", "printable ASCII characters without blanks")
