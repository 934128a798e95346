"""Does the API stand open to other machines without a key?"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from recipe.checks import Finding


@dataclass(frozen=True)
class Bind:
    host: str
    has_key: bool


def check(facts: Bind, need: None = None) -> Finding:
    if facts.has_key or is_loopback(facts.host):
        return Finding("I_PORT", f"the API is {'behind a key' if facts.has_key else 'on loopback only'}")
    return Finding("W_OPEN_BIND", f"HOST={facts.host} without a key", "a key, or loopback")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
