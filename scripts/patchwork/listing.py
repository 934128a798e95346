"""The patch series as data: `series.yaml`, the headers of the patch files, and the commit messages they come from. Runs nothing."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from failure import Failure

FOLDER = "patches"
SERIES_FILE = "series.yaml"
KINDS = ("bits", "drafts", "reference", "structural", "diagnostic", "feature")
NAME = re.compile(r"\d{4}-[a-z0-9]+(-[a-z0-9]+)+\Z")
OBJECT_ID = re.compile(r"[0-9a-f]{40}\Z")
WIDTH = 100
END_OF_HEADER = "---\n"
# Trailers of a commit message and of a patch's header, in the order they are written.
TRAILERS = {
    "Patch": "name",
    "Switch": "switch",
    "Default": "default",
    "Kind": "kind",
    "Effect": "effect",
    "Remove-When": "remove_when",
}


@dataclass(frozen=True)
class Story:
    """What a patch says of itself. `effect` is a measured figure with its place, or "not measured"."""

    name: str
    what: str
    why: str
    switch: str
    default: str
    kind: str
    effect: str
    remove_when: str


@dataclass(frozen=True)
class Patch:
    """One patch of the series: its story, the digest of its file, and the tree id after it was applied."""

    story: Story
    sha256: str
    tree_id: str

    @property
    def file(self) -> str:
        return f"{self.story.name}.patch"


@dataclass(frozen=True)
class Series:
    """`folder` holds the files; `pin` is the Git tree id of the engine they apply to."""

    folder: Path
    pin: str
    patches: tuple[Patch, ...]

    @property
    def result(self) -> str:
        """Tree id of the engine with the whole series."""
        return self.patches[-1].tree_id if self.patches else self.pin


def _refuse(found: str, needed: str, remedy: str = "") -> Failure:
    return Failure("E_PATCHES", found=found, needed=needed, remedy=remedy)


def check_story(story: Story) -> Story:
    """The story itself. Raises Failure E_PATCHES for what it lacks."""
    for field, value in asdict(story).items():
        if not value.strip():
            raise _refuse(f"patch {story.name or '?'} without {field}", f"a {field} for every patch")
    if not NAME.fullmatch(story.name):
        raise _refuse(f"the patch name {story.name!r}", "NNNN-area-what in small letters and digits")
    if story.kind not in KINDS:
        raise _refuse(f"patch {story.name} of kind {story.kind!r}", f"one of {', '.join(KINDS)}")
    return story


def check_order(series: Series) -> Series:
    """The series itself. Raises Failure E_PATCHES where numbers repeat or fall."""
    numbers = [patch.story.name[:4] for patch in series.patches]
    if any(first >= second for first, second in pairwise(numbers)):
        raise _refuse(f"patch numbers {' '.join(numbers)}", "rising numbers, none twice")
    return series


def read(folder: Path) -> Series:
    """The series of a folder. Reads only `series.yaml`; the files' digests are compared when they are applied. Raises Failure E_PATCHES."""
    place = folder / SERIES_FILE
    try:
        told = json.loads(place.read_text(encoding="utf-8"))
        patches = tuple(_read_patch(entry) for entry in told["patches"])
        series = Series(folder, told["pin"], patches)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refuse(f"{place}: {error or type(error).__name__}", "a pin and a list of patches, as ./start.sh patches writes it") from None
    for tree_id in (series.pin, *(patch.tree_id for patch in patches)):
        if not OBJECT_ID.fullmatch(str(tree_id)):
            raise _refuse(f"{place}: tree id {tree_id!r}", "40 hexadecimal digits")
    listed = {patch.file for patch in patches}
    lying = {path.name for path in folder.glob("*.patch")}
    if listed != lying:
        raise _refuse(f"patches listed, not there: {sorted(listed - lying)}; there, not listed: {sorted(lying - listed)}", "the same set")
    return check_order(series)


def _read_patch(entry: dict[str, Any]) -> Patch:
    story = Story(**{field.name: str(entry[field.name]) for field in fields(Story)})
    return Patch(check_story(story), str(entry["sha256"]), str(entry["tree"]))


def text(series: Series) -> str:
    """`series.yaml` as it is written: the JSON subset of YAML, so that the bare system Python reads it."""
    patches = [{**asdict(patch.story), "sha256": patch.sha256, "tree": patch.tree_id} for patch in series.patches]
    return json.dumps({"pin": series.pin, "patches": patches}, indent=2, ensure_ascii=False) + "\n"


def message(story: Story) -> str:
    """Commit message of a patch; the same text heads its file."""
    paragraphs = [textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False) for paragraph in story.why.split("\n\n")]
    trailers = "\n".join(f"{label}: {getattr(story, field)}" for label, field in TRAILERS.items())
    return "\n\n".join([story.what, *paragraphs, trailers]) + "\n"


def parse_message(commit_message: str) -> Story:
    """Story of a commit message. Raises Failure E_PATCHES naming the trailers that are missing."""
    blocks = [block for block in re.split(r"\n\s*\n", commit_message.strip()) if block.strip()]
    what = " ".join(blocks[0].split()) if blocks else ""
    values: dict[str, str] = {}
    for line in blocks[-1].splitlines() if len(blocks) > 1 else ():
        label, colon, value = line.partition(":")
        if colon and label.strip() in TRAILERS:
            values[TRAILERS[label.strip()]] = value.strip()
    missing = [label for label, field in TRAILERS.items() if not values.get(field)]
    if missing:
        raise _refuse(
            f"commit {what!r} without the trailers {', '.join(missing)}",
            "a last paragraph with " + ", ".join(f"{label}:" for label in TRAILERS),
            "git commit --amend or git rebase -i in the work tree, then ./start.sh patches refresh",
        )
    why = "\n\n".join(" ".join(block.split()) for block in blocks[1:-1])
    return check_story(Story(what=what, why=why, **values))


def compose(story: Story, diff: bytes) -> bytes:
    """Content of a patch file: header, a line of three dashes, the diff."""
    return (message(story) + END_OF_HEADER).encode() + diff


def header_of(content: bytes) -> str:
    """Header of a patch file's content."""
    return content.decode("utf-8", "replace").partition(f"\n{END_OF_HEADER}")[0] + "\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_patch_file(series: Series, patch: Patch) -> bytes:
    """Content of a patch's file. Raises Failure E_PATCHES where digest or header are not what the series says."""
    place = series.folder / patch.file
    try:
        content = place.read_bytes()
    except OSError as error:
        raise _refuse(f"{place}: {error.strerror}", "every patch of the series") from None
    if sha256(content) != patch.sha256:
        raise _refuse(f"{place} has SHA-256 {sha256(content)}", patch.sha256)
    if header_of(content) != message(patch.story):
        remedy = "change both by ./start.sh patches edit and refresh"
        raise _refuse(f"the header of {place} tells another story than {SERIES_FILE}", "the same words", remedy)
    return content
