"""Locks of requirements/: whole, hashed, in step with each other and with the lists they were made from. Asks no index.

What a package needs is read from the packages installed beside this check, so it runs in the environment of dev.lock.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from checks.listing import ROOT

HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\Z")
ENTRY = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?P<hashes>( +--hash=\S+)+)$")
EVERYTHING = "dev"
# What only a CUDA build of torch needs is not installed here, so only the form of this lock can be judged.
NOT_INSTALLED = "engine-cuda"
# Asked for by name and never loaded: it masks on a GPU, and masks are applied on the host.
NOT_NEEDED = {("xgrammar", "triton")}


def read_lock(text: str) -> dict[str, str]:
    """Name to version. Raises ValueError naming the first line that is not a pinned, hashed package."""
    pinned = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        entry = ENTRY.match(" ".join(line.split()))
        if entry is None or not all(HASH.match(word) for word in entry["hashes"].split()):
            raise ValueError(line.split("--hash")[0].strip())
        pinned[entry["name"]] = entry["version"]
    return pinned


def wanted(folder: Path, name: str) -> list[Requirement]:
    """Requirements of a list with the lists it includes."""
    found = []
    for line in (folder / name).read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("-r "):
            found += wanted(folder, text[3:].strip())
        elif text:
            found.append(Requirement(text))
    return found


def missing(requirements: list[Requirement], pinned: dict[str, str]) -> Iterator[str]:
    """What the requirements, and the packages they bring, need beyond the lock."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(requirement, "the list") for requirement in requirements]
    while waiting:
        requirement, needed_by = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        if name not in pinned or not requirement.specifier.contains(pinned[name], prereleases=True):
            yield f"{requirement} for {needed_by} (locked: {pinned.get(name, 'nothing')})"
            continue
        try:
            children = [Requirement(text) for text in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            yield f"a look at {name}, which is not installed beside this check"
            continue
        extras = requirement.extras or {""}
        children = [child for child in children if (name, child.name) not in NOT_NEEDED]
        waiting += [(child, name) for child in children if child.marker is None or any(child.marker.evaluate({"extra": e}) for e in extras)]


def findings(root: Path) -> Iterator[str]:
    folder = root / "requirements"
    locks: dict[str, dict[str, str]] = {}
    for place in sorted(folder.glob("*.lock")):
        try:
            locks[place.stem] = read_lock(place.read_text(encoding="utf-8"))
        except ValueError as error:
            yield f"{place.name}: {error} is not pinned to one version with SHA-256 digests"
    for name, pinned in locks.items():
        if name != NOT_INSTALLED:
            for lack in missing(wanted(folder, f"{name}.in"), pinned):
                yield f"{name}.lock lacks {lack}"
            for package, version in pinned.items():
                if locks[EVERYTHING].get(package) != version:
                    yield f"{name}.lock has {package} {version}, {EVERYTHING}.lock {locks[EVERYTHING].get(package, 'nothing')}"
    for package in locks.get("engine-cpu", {}):
        if package.startswith("nvidia-") or package == "triton":
            yield f"engine-cpu.lock has {package}, which only a GPU needs"


if __name__ == "__main__":
    found = list(findings(ROOT))
    print("\n".join(found))
    sys.exit(bool(found))
