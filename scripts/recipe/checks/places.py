"""Can the folders be written to in which a start puts things, and is there room for small ones?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from recipe.checks import Finding

LEAST_MIB, MIB, LEAST_FILES = 32, 1 << 20, 64


@dataclass(frozen=True)
class Place:
    """`problem`: why nobody here can write there; empty where that can be done."""

    path: Path
    problem: str
    free_bytes: int
    free_files: int


def check(facts: Mapping[str, Place]) -> Iterator[Finding]:
    """`facts` by the names of settings."""
    for name, place in facts.items():
        if place.problem:
            code = "E_LOG" if name == "LOG_DIR" else "E_CONFIG"
            yield Finding(code, f"{name}={place.path}: {place.problem}", "a folder of your own", f"correct {name}")
        elif place.free_bytes < LEAST_MIB * MIB or place.free_files < LEAST_FILES:
            found = f"{place.free_bytes / MIB:.1f} MiB and {place.free_files} more files (inodes) free at {name}={place.path}"
            needed = f"{LEAST_MIB} MiB and {LEAST_FILES} files for logs and records"
            yield Finding("E_DISK", found, needed, f"free space there, or move {name}")
