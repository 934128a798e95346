"""Exports the pinned engine tree and applies the series to it, exactly. Writes only into the folder it is given."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from patchwork import git, listing
from patchwork.engine import ENGINE, Pin
from patchwork.git import GitError
from patchwork.listing import Patch, Series

# All that Git says of a patch that fits exactly; an offset, a reduced context or another file mode adds a line of its own.
EXACT = re.compile(r"(Checking patch .*\.\.\.|Applied patch .* cleanly\.)?\Z")
DIFF = (
    *("diff-tree", "-p", "--full-index", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--unified=3", "--inter-hunk-context=0", "--diff-algorithm=myers", "--indent-heuristic"),
)


@dataclass(frozen=True)
class GitAction:
    """One Git command; its failure is Failure E_PIN with the reason Git gave."""

    argv: tuple[str, ...]
    needed: str

    @property
    def line(self) -> str:
        return shlex.join(self.argv)

    def run(self) -> None:
        try:
            git.run(self.argv)
        except GitError as error:
            raise Failure("E_PIN", found=f"`{self.line}`: {error.said}", needed=self.needed) from None


@dataclass(frozen=True)
class Borrow:
    """Lets `scratch` read the objects of another repository of this host, so that nothing is copied and a tree is enough."""

    objects: str
    scratch: Path

    @property
    def _list(self) -> Path:
        return self.scratch / ".git" / "objects" / "info" / "alternates"

    @property
    def line(self) -> str:
        return f"echo {shlex.quote(self.objects)} > {shlex.quote(str(self._list))}"

    def run(self) -> None:
        self._list.parent.mkdir(parents=True, exist_ok=True)
        self._list.write_text(f"{self.objects}\n", encoding="utf-8")


@dataclass(frozen=True)
class StrictApply:
    """Applies one patch to the index of `scratch`: digest and header as recorded, every hunk at its line, no fuzz, no rejects."""

    scratch: Path
    series: Series
    patch: Patch

    @property
    def argv(self) -> tuple[str, ...]:
        return git.command(self.scratch, "apply", "--cached", "--verbose", "--whitespace=nowarn", str(self.series.folder / self.patch.file))

    @property
    def line(self) -> str:
        return f"{shlex.join(self.argv)}  # refused with any offset or fuzz"

    def run(self) -> None:
        listing.read_patch_file(self.series, self.patch)
        needed = f"{self.patch.file} to fit the tree before it exactly, every hunk at its line"
        try:
            _, said = git.run(self.argv)
        except GitError as error:
            raise Failure("E_PATCHES", found=f"{self.patch.file}: {_reason(error.output)}", needed=needed) from None
        inexact = [line for line in said.splitlines() if not EXACT.match(line)]
        if inexact:
            raise Failure("E_PATCHES", found=f"{self.patch.file}: {inexact[0]}", needed=needed)


@dataclass(frozen=True)
class CheckTree:
    """Compares the index of `scratch` with a recorded tree id; `after` says what came before it."""

    scratch: Path
    expected: str
    after: str

    @property
    def line(self) -> str:
        return f'test "$({shlex.join(git.command(self.scratch, "write-tree"))})" = {self.expected}  # after {self.after}'

    def run(self) -> None:
        found = git.ask(self.scratch, "write-tree")
        if found != self.expected:
            raise Failure("E_PATCHES", found=f"tree {found} after {self.after}", needed=f"the recorded tree {self.expected}")


@dataclass(frozen=True)
class Remove:
    """Removes a folder of this program's own making."""

    folder: Path

    @property
    def line(self) -> str:
        return shlex.join(("rm", "-rf", str(self.folder)))

    def run(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


Action = GitAction | Borrow | StrictApply | CheckTree | Remove


def _reason(output: str) -> str:
    errors = [line for line in output.splitlines() if line.startswith(("error:", "fatal:"))]
    # Where a hunk does not match, the first line only opens a quotation of it; the second names file and line.
    named = [line for line in errors if not line.endswith("while searching for:")]
    return named[0] if named else output.strip() or "Git gave no reason"


def opening(scratch: Path, pin: Pin) -> Sequence[Action]:
    """Actions that make `scratch` a repository whose index is the engine tree of the pin."""
    start = GitAction(("git", "init", "--quiet", str(scratch)), "a folder that can be written")
    if Path(pin.source).is_dir():
        fetch: Action = Borrow(git.objects(Path(pin.source)), scratch)
    else:
        argv = git.command(scratch, "fetch", "--quiet", "--depth=1", "--no-tags", pin.source, pin.commit)
        fetch = GitAction(argv, f"commit {pin.commit} of {pin.source}, over the network")
    tree = pin.tree_id or f"{pin.commit}:{ENGINE}"
    needed = f"the engine tree {tree} in {pin.source}, whole (a shallow or partial clone may lack it: git fetch --unshallow)"
    return (start, fetch, GitAction(git.command(scratch, "read-tree", tree), needed))


def actions(pin: Pin, destination: Path) -> Sequence[Action]:
    """What `export` does, each with the line a dry run prints. `destination` must not exist. Changes nothing itself."""
    scratch = destination.with_name(f"{destination.name}.git-work")
    planned: list[Action] = list(opening(scratch, pin))
    for patch in pin.series.patches:
        planned.append(StrictApply(scratch, pin.series, patch))
        if pin.is_release:
            planned.append(CheckTree(scratch, patch.tree_id, patch.file))
    needed = f"a folder {destination} that can be written"
    planned.append(GitAction(git.command(scratch, "checkout-index", "--all", f"--prefix={destination}/"), needed))
    planned.append(Remove(scratch))
    return planned


def export(pin: Pin, destination: Path) -> str:
    """Write the patched engine to `destination` and return its tree id. Raises Failure E_PIN or E_PATCHES.

    For another engine than the pinned one the series must apply exactly all the same, but no tree id is recorded to compare with.
    """
    tree_id = ""
    for action in actions(pin, destination):
        if isinstance(action, Remove):
            tree_id = git.ask(action.folder, "write-tree")
        action.run()
    return tree_id


def digest(pin: Pin) -> str:
    """SHA-256 of everything that decides the patched engine: the tree, or the commit that names it, and every patch."""
    parts = [pin.tree_id or pin.commit, *(patch.sha256 for patch in pin.series.patches)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def diff(repository: Path, before: str, after: str) -> bytes:
    """The one text of the change between two trees, whatever the user's Git settings."""
    return git.run(git.command(repository, *DIFF, before, after))[0]


@contextmanager
def scratch_repository(pin: Pin) -> Iterator[Path]:
    """A repository that lasts as long as the block, its index the engine tree of the pin."""
    with tempfile.TemporaryDirectory(prefix="patches-") as beside:
        scratch = Path(beside) / "work"
        for action in opening(scratch, pin):
            action.run()
        yield scratch


def apply_each(scratch: Path, series: Series) -> Iterator[tuple[Patch, str, str]]:
    """Apply the series to the index of `scratch`; yields each patch with the tree ids before and after it. Raises Failure E_PATCHES."""
    before = git.ask(scratch, "write-tree")
    for patch in series.patches:
        StrictApply(scratch, series, patch).run()
        after = git.ask(scratch, "write-tree")
        yield patch, before, after
        before = after


def verify(pin: Pin) -> None:
    """Prove the series against the pinned tree: digests, headers, exact fit, recorded trees, and that each file is what refresh writes.

    Raises Failure E_PIN or E_PATCHES.
    """
    with scratch_repository(pin) as scratch:
        for patch, before, after in apply_each(scratch, pin.series):
            CheckTree(scratch, patch.tree_id, patch.file).run()
            written = listing.compose(patch.story, diff(scratch, before, after))
            if listing.sha256(written) != patch.sha256:
                raise Failure("E_PATCHES", found=f"{patch.file} is not the text that ./start.sh patches refresh writes", needed="that text")
