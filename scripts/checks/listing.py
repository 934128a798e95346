"""Which files of the working tree belong to the project: tracked ones, and those that would be if added. Judges none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELLS = (b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh")


def files(root: Path) -> list[Path]:
    """Paths relative to `root`, sorted; files deleted but still tracked, links and folders are left out."""
    argv = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, capture_output=True, check=True).stdout.decode().split("\0")
    return [Path(name) for name in sorted(set(names)) if name and (root / name).is_file() and not (root / name).is_symlink()]


def python_files(root: Path) -> list[Path]:
    return [path for path in files(root) if path.suffix == ".py"]


def shell_scripts(root: Path) -> list[Path]:
    """Bash and sh scripts, by ending or first line."""
    return [path for path in files(root) if path.suffix == ".sh" or (root / path).open("rb").readline().rstrip() in SHELLS]


if __name__ == "__main__":
    print("\n".join(map(str, {"shell": shell_scripts, "python": python_files}[sys.argv[1]](ROOT))))
