"""Words that must not stand in the project: secrets, places of the machine it was made on, hosts of package registries."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from checks.listing import ROOT, files

# Folders every machine has; a checkout right below one of them says nothing about whose machine it is.
COMMON = frozenset(map(Path, ("/", "/tmp", "/home", "/root", "/opt", "/srv", "/var", "/var/tmp", "/mnt", "/data", "/usr/src")))
PATTERNS = {
    "a hub token": re.compile(rb"\bhf_[A-Za-z0-9]{30,}"),
    "an API key": re.compile(rb"\bsk-[A-Za-z0-9_-]{32,}"),
    "a Git host's token": re.compile(rb"\b(gh[pousr]_[A-Za-z0-9]{30,}|glpat-[A-Za-z0-9_-]{20,})"),
    "a cloud key": re.compile(rb"\bAKIA[0-9A-Z]{16}\b"),
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a home folder": re.compile(rb"(?<![\w.$}])/(home|Users)/(?!somebody/|user/|you/)[a-z][\w.-]*/"),
    "a package registry's host": re.compile(rb"\b(pypi|registry|files|deb|mirrors?|index)\.([a-z0-9-]+\.)*(org|com|io|net)\b"),
    "an address of an index in a requirements file": re.compile(
        rb"^(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b|://", re.MULTILINE
    ),
}
REQUIREMENTS_ONLY = "an address of an index in a requirements file"


def _own_places(root: Path) -> dict[str, re.Pattern[bytes]]:
    """Patterns for this checkout's own path, and its parent's where that is not a folder every machine has."""
    places = [root] if root.parent in COMMON else [root.parent]
    return {"a path of this machine": re.compile(b"|".join(re.escape(str(place).encode()) + rb"/" for place in places))}


def findings(root: Path) -> Iterator[str]:
    """`file:line: what`, never the word itself: it may be a secret."""
    patterns = PATTERNS | _own_places(root)
    for path in files(root):
        content = (root / path).read_bytes()
        if b"\0" in content:
            continue
        for what, pattern in patterns.items():
            if what == REQUIREMENTS_ONLY and not path.is_relative_to("requirements"):
                continue
            for match in pattern.finditer(content):
                line = content.count(b"\n", 0, match.start()) + 1
                yield f"{path}:{line}: {what}"


if __name__ == "__main__":
    found = list(findings(ROOT))
    print("\n".join(found))
    sys.exit(bool(found))
