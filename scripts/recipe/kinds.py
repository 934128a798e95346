"""Kinds of setting values: each reads one text, or says what it needed. Knows no setting by name."""

import ipaddress
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

# The last part of a name is no number: resolvers take 0 and 127.1 for addresses.
HOSTNAME = re.compile(
    r"(?=.{1,253}\Z)([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*(?![0-9]+\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z"
)
NO_GPU = "none"

Value = str | int | float | tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """`read` turns text into a value or raises ValueError; `allowed` is the sentence part that says which texts it takes."""

    allowed: str
    read: Callable[[str], Value]


def _when(allowed: str, is_allowed: Callable[[Any], object], read: Callable[[str], Value] = str) -> Kind:
    """What `read` makes of a text, if that is allowed; `read` may raise ValueError too."""

    def checked(text: str) -> Value:
        value = read(text)
        if not is_allowed(value):
            raise ValueError(allowed)
        return value

    return Kind(allowed, checked)


def _number(pattern: str, make: type[int] | type[float]) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        if not re.fullmatch(pattern, text):
            raise ValueError(pattern)
        return make(text)

    return read


def integer(low: int, high: int) -> Kind:
    """Decimal digits without sign or leading zero, `low` to `high` inclusive."""
    allowed = f"a whole number from {low:,} to {high:,}".replace(",", "")
    return _when(allowed, lambda number: low <= number <= high, _number(r"0|[1-9][0-9]{0,17}", int))


def decimal(low: float, high: float) -> Kind:
    """Digits with at most one point and two digits after it, `low` to `high` inclusive."""
    allowed = f"a number from {low:g} to {high:g}"
    return _when(allowed, lambda number: low <= number <= high, _number(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,2})?", float))


def choice(*words: str) -> Kind:
    return _when("one of " + ", ".join(words), words.__contains__)


def matching(pattern: str, allowed: str) -> Kind:
    """Text that matches `pattern` as a whole."""
    return _when(allowed, re.compile(pattern).fullmatch)


def folder() -> Kind:
    """An absolute path. A colon would split a container's mount, a control character any log line."""
    allowed, pattern = "an absolute path without ':' or control characters", re.compile(r"/[^:\x00-\x1f\x7f]*")
    return _when(allowed, pattern.fullmatch, lambda text: text[:1] + text[1:].rstrip("/"))


def optional(kind: Kind) -> Kind:
    """The same kind, or nothing at all."""
    return Kind(f"empty or {kind.allowed}", lambda text: kind.read(text) if text else "")


def _host(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text if HOSTNAME.match(text) else ""


def address() -> Kind:
    return _when("an IPv4 or IPv6 address or a host name", bool, _host)


GPU_WORD = re.compile(r"0|[1-9][0-9]{0,2}|GPU-[0-9a-fA-F-]{8,36}|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9]")


def gpus(count: int) -> Kind:
    """One device or up to `count` distinct ones separated by commas, or the word `none`: () stands for no GPU."""
    allowed = f"one or {count} different devices by number, UUID (GPU-...) or bus id (0000:01:00.0), such as 0,1; or {NO_GPU}"

    def is_allowed(words: tuple[str, ...]) -> bool:
        return len(set(words)) == len(words) <= count and all(map(GPU_WORD.fullmatch, words))

    return _when(allowed, is_allowed, lambda text: () if text == NO_GPU else tuple(text.split(",")))


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def arguments(taken: Collection[str]) -> Kind:
    """Further options of the engine as a shell would take them. `taken` are options that settings decide, with and without `--no-`."""

    def is_allowed(words: tuple[str, ...]) -> bool:
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        # A prefix of an option is that option to the engine's parser.
        known = [name for option in options for name in taken if f"--{name}".startswith(option.replace("--no-", "--"))]
        return "".join(words[:1]).startswith("--") and not known and all(re.fullmatch(r"--[a-z][a-z0-9-]+", option) for option in options)

    return _when("options such as --max-queued 64, none of those that a setting decides", is_allowed, _words)


def variables(prefixes: Collection[str]) -> Kind:
    """Further variables of the engine, NAME=value after NAME=value: of its libraries, none that sounds like a secret."""
    allowed = f"NAME=value, names beginning with {', '.join(prefixes)}, none with KEY, TOKEN, SECRET or PASSWORD in it"
    name = re.compile(rf"(?!.*(KEY|TOKEN|SECRET|PASSWORD))({'|'.join(prefixes)})[A-Z0-9_]+=[\x20-\x7e]*")
    return _when(allowed, lambda words: all(map(name.fullmatch, words)), _words)


FLAG = choice("0", "1")
PRINTABLE = matching(r"[\x21-\x7e]+", "printable ASCII characters without blanks")
