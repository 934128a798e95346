"""Kinds of setting values: each reads one text, or says what it needed. Knows no setting by name."""

import ipaddress
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass

MAX_DIGITS = 18
HOSTNAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\Z")
NO_GPU = "none"

Value = str | int | float | tuple[str, ...]


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


def decimal(low: float, high: float) -> Kind:
    """Digits with at most one point and two digits after it, `low` to `high` inclusive."""
    allowed = f"a number from {low:g} to {high:g}"

    def read(text: str) -> float:
        if not re.fullmatch(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,2})?", text) or not low <= float(text) <= high:
            raise _refuse(allowed)
        return float(text)

    return Kind(allowed, read)


GPU_WORD = re.compile(r"0|[1-9][0-9]{0,2}|GPU-[0-9a-fA-F-]{8,36}|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9]")


def gpus(count: int) -> Kind:
    """One device or up to `count` distinct ones separated by commas, or the word `none`: () stands for no GPU."""
    allowed = f"one or {count} different devices by number, UUID (GPU-...) or bus id (0000:01:00.0), such as 0,1; or {NO_GPU}"

    def read(text: str) -> tuple[str, ...]:
        words = () if text == NO_GPU else tuple(text.split(","))
        if text != NO_GPU and not (len(set(words)) == len(words) <= count and all(GPU_WORD.fullmatch(word) for word in words)):
            raise _refuse(allowed)
        return words

    return Kind(allowed, read)


def arguments(taken: Collection[str]) -> Kind:
    """Further options of the engine as a shell would take them. `taken` are options that settings decide, with and without `--no-`."""
    allowed = "options such as --max-queued 64, none of those that a setting decides"

    def read(text: str) -> tuple[str, ...]:
        words = tuple(shlex.split(text))
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        # A prefix of an option is that option to the engine's parser.
        known = [name for option in options for name in taken if f"--{name}".startswith(option.replace("--no-", "--"))]
        if not words or not words[0].startswith("--") or known or any(not re.fullmatch(r"--[a-z][a-z0-9-]+", option) for option in options):
            raise _refuse(allowed)
        return words

    return Kind(allowed, read)


def variables(prefixes: Collection[str]) -> Kind:
    """Further variables of the engine, NAME=value after NAME=value: of its libraries, none that sounds like a secret."""
    allowed = f"NAME=value, names beginning with {', '.join(prefixes)}, none with KEY, TOKEN, SECRET or PASSWORD in it"
    name = re.compile(rf"(?!.*(KEY|TOKEN|SECRET|PASSWORD))({'|'.join(prefixes)})[A-Z0-9_]+=[\x20-\x7e]*")

    def read(text: str) -> tuple[str, ...]:
        words = tuple(shlex.split(text))
        if not all(name.fullmatch(word) for word in words):
            raise _refuse(allowed)
        return words

    return Kind(allowed, read)


FLAG = choice("0", "1")
PRINTABLE = matching(r"[\x21-\x7e]+", "printable ASCII characters without blanks")
