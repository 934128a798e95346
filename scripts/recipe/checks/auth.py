"""Who can reach the API, who needs a key for it, and does anybody else see the key?"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recipe.checks import Finding


@dataclass(frozen=True)
class Auth:
    """`problem` says why the key file cannot be used; `open_files` hold secrets and may be read by other users."""

    mode: str
    host: str
    key_file: Path
    has_file: bool
    problem: str = ""
    open_files: tuple[Path, ...] = ()


def check(facts: Auth) -> Iterator[Finding]:
    for place in facts.open_files:
        yield Finding("W_SECRET_FILE", f"{place} may be read by other users")
    if facts.mode == "open":
        yield opened(facts.host)
    elif facts.problem:
        yield Finding("E_KEY", f"{facts.key_file}: {facts.problem}", "a readable file with a key in it")
    else:
        who = "everybody needs a key" if facts.mode == "key" else "programs of this host need no key, everybody else does"
        yield Finding("I_AUTH", f"{who}: {facts.key_file}" + ("" if facts.has_file else ", which a start makes"))


def opened(host: str) -> Finding:
    """What AUTH=open is at this address."""
    try:
        is_near = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_near = host == "localhost"
    if is_near:
        return Finding("I_AUTH", "nobody needs a key; loopback only")
    return Finding("W_OPEN_BIND", f"HOST={host} AUTH=open: whoever reaches this host can use the API, without a key")
