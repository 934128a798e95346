"""Can the folders be written to in which a start puts things, and is there room for small ones?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from recipe.checks import Finding

LEAST_MIB, MIB = 32, 1 << 20


@dataclass(frozen=True)
class Place:
    """`problem`: why nobody here can write there; empty where that can be done."""

    path: Path
    problem: str
    free_bytes: int


def check(facts: Mapping[str, Place]) -> Iterator[Finding]:
    """`facts` by the names of settings."""
    for name, place in facts.items():
        if place.problem:
            code = "E_LOG" if name == "LOG_DIR" else "E_CONFIG"
            yield Finding(code, f"{name}={place.path}: {place.problem}", "a folder of your own", f"correct {name}")
        elif place.free_bytes < LEAST_MIB * MIB:
            found = f"{place.free_bytes / MIB:.1f} MiB free at {name}={place.path}"
            yield Finding("E_DISK", found, f"{LEAST_MIB} MiB for logs and records", f"free space there, or move {name}")
