"""What all ranks must agree on before and during serving, by name, and its digest. Standard library and text only."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields

from lockstep.config.serving import ServingOptions
from lockstep.core.errors import LockstepError


class RankMismatch(LockstepError):
    """Ranks that do not run the same thing."""


def rank_settings(options: ServingOptions, build: str, engine_version: str) -> dict[str, str]:
    """Every option, the digest of model and build, and the engine's version."""
    named = {field.name: str(getattr(options, field.name)) for field in fields(options)}
    return named | {"build digest": build, "engine version": engine_version}


def compare_settings(rank: int, own: Mapping[str, str], first: Mapping[str, str]) -> None:
    """Raise RankMismatch naming what rank `rank` and rank 0 see differently."""
    different = [name for name in sorted({*own, *first}) if own.get(name) != first.get(name)]
    if different:
        told = "; ".join(f"{name}: {own.get(name, 'nothing')} here, {first.get(name, 'nothing')} on rank 0" for name in different)
        raise RankMismatch(f"rank {rank} has other settings than rank 0 ({told}); needed: the same command, engine and checkpoint")


def settings_digest(settings: Mapping[str, str]) -> str:
    """16 hex digits over names and values."""
    lines = "\n".join(f"{name}={settings[name]}" for name in sorted(settings))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]
