"""What must never be told: the hub token and API keys. Reads and makes their files, and takes their values out of texts."""

import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from failure import Failure
from recipe.config import ENV_FILE, Config
from recipe.files import PRIVATE_FOLDER, write_atomically

KEY_BYTES = 24
# A shorter one would take words out of a log that are none of it.
SHORTEST = 8
REDACTED = b"[redacted]"
KEY = re.compile(r"[\x20-\x7e]{1,4096}")


def hub_token(config: Config) -> str:
    """HF_TOKEN, or the first line of the file at HF_TOKEN_PATH; empty for none."""
    return config.chosen["HF_TOKEN"].text or _first_line(config.folder("HF_TOKEN_PATH"))


def _first_line(path: Path) -> str:
    try:
        return next((line.strip() for line in path.read_text(encoding="utf-8").splitlines()), "")
    except (OSError, UnicodeDecodeError):
        return ""


def make_key(path: Path) -> None:
    """A fresh key in a file that only its owner reads. Raises Failure E_KEY."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
        write_atomically(path, f"{secrets.token_urlsafe(KEY_BYTES)}\n".encode())
    except OSError as error:
        raise Failure("E_KEY", found=f"{path} cannot be written: {error.strerror}", needed="a file of your own for the API key") from error


def keys(path: Path) -> list[str]:
    """Every key of a key file: one a line, as `key` or `label: key`. Raises OSError, or ValueError for what no request could carry."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    told = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    found = [(key if separator else label).strip() for label, separator, key in told]
    if not all(map(KEY.fullmatch, found)):
        raise ValueError("a key in it is not of printable ASCII characters, 4096 at most")
    return found


def open_files(config: Config) -> list[Path]:
    """Files with a secret in them that other users may read."""
    places = [config.folder("API_KEY_FILE"), config.folder("HF_TOKEN_PATH")]
    if config.chosen["HF_TOKEN"].origin.startswith(ENV_FILE):
        places.append(config.root / ENV_FILE)
    return [place for place in places if _mode(place) & (stat.S_IRWXG | stat.S_IRWXO)]


def _mode(place: Path) -> int:
    try:
        return place.stat().st_mode
    except OSError:
        return 0


def values(config: Config) -> tuple[str, ...]:
    """Every secret known to this run, the longest first, so that none is left over of another."""
    try:
        known = keys(config.folder("API_KEY_FILE"))
    except (OSError, ValueError):
        known = []
    told = {hub_token(config), *known, os.environ.get("QUALITY_API_KEY", "")}
    return tuple(sorted((one for one in told if len(one) >= SHORTEST), key=len, reverse=True))


def without(hidden: Iterable[str], content: bytes) -> bytes:
    """`content` without any of these values."""
    for value in hidden:
        content = content.replace(value.encode(), REDACTED)
    return content
