"""Runs Git. The only place that knows how to keep the user's own Git settings and variables from changing what a command means."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from failure import Failure

# A user's line-end setting would change the bytes that are read or written; the one on white space would let an inexact patch fit.
AGAINST_USER_SETTINGS = {
    "add": ("-c", "core.autocrlf=false"),
    "checkout-index": ("-c", "core.autocrlf=false"),
    "apply": ("-c", "apply.ignoreWhitespace=no"),
}


class GitError(Exception):
    """`said` is the last line Git printed as an error; `output` is all it printed as errors."""

    def __init__(self, argv: Sequence[str], status: int, output: str) -> None:
        lines = [line for line in output.splitlines() if line.strip()]
        self.said = lines[-1].strip() if lines else f"status {status}"
        self.output = output
        super().__init__(f"{' '.join(argv)}: {self.said}")


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # LC_ALL: messages are read. GIT_OPTIONAL_LOCKS: looking must not write an index.
    return kept | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def command(repository: Path, verb: str, *arguments: str) -> tuple[str, ...]:
    """Argument list of one Git command in `repository`, as it is run and as it is printed."""
    return ("git", "-C", str(repository), *AGAINST_USER_SETTINGS.get(verb, ()), verb, *arguments)


def run(argv: Sequence[str], *, stdin: bytes = b"", variables: dict[str, str] | None = None) -> tuple[bytes, str]:
    """Standard output, and what was printed as errors. Raises GitError for any status but 0, Failure E_DEPENDENCY where Git is missing."""
    try:
        done = subprocess.run(list(argv), env=_environment() | (variables or {}), input=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        raise Failure("E_DEPENDENCY", found="not on PATH: git", needed="git", remedy="install git") from None
    errors = done.stderr.decode("utf-8", "replace")
    if done.returncode != 0:
        raise GitError(argv, done.returncode, errors)
    return done.stdout, errors


def ask(repository: Path, verb: str, *arguments: str) -> str:
    """Standard output of one question, without the line end. Raises GitError."""
    return run(command(repository, verb, *arguments))[0].decode("utf-8", "replace").rstrip("\n")


def objects(repository: Path) -> str:
    """Absolute path of the folder that holds a repository's objects; a linked work tree has none of its own. Raises GitError."""
    return ask(repository, "rev-parse", "--path-format=absolute", "--git-path", "objects")
