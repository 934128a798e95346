"""Can this Python make environments with pip in them?"""

from dataclasses import dataclass

from recipe.checks import Finding


@dataclass(frozen=True)
class Venv:
    """`version` such as 3.11; `can_install`: root with apt-get on PATH, so the missing package can be installed on the way."""

    version: str
    has_ensurepip: bool
    can_install: bool


def check(facts: Venv, need: str = "") -> Finding:
    """`need`: the only version for which packages are listed; empty for any."""
    if need not in ("", facts.version):
        return Finding("E_PYTHON", f"Python {facts.version}", f"Python {need}, as requirements/ lists", f"PYTHON=python{need} ./start.sh")
    if facts.has_ensurepip:
        return Finding("I_DEPENDENCY", f"Python {facts.version} with venv and ensurepip")
    if facts.can_install:
        return Finding("I_DEPENDENCY", f"Python {facts.version} without ensurepip; python3-venv gets installed")
    return Finding("E_VENV", f"Python {facts.version} without ensurepip", "Python with venv and ensurepip")
