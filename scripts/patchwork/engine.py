"""Which engine tree is built: the pinned one of this repository, or a commit of another. Looks only; knows no patch's content."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from patchwork import git, listing
from patchwork.git import GitError

ENGINE = "engine"
PIN_REMEDY = "commit your edit and run ./start.sh patches pin, or put it aside: git stash --include-untracked -- engine"
COMMIT_DIGITS = 40


@dataclass(frozen=True)
class Pin:
    """The tree to build. `source` and `commit` say where it is fetched from; `series` is what is applied to it.

    `tree_id` is empty for a repository that is only reached at build time (a URL); then `commit` alone names the content.
    `is_release` is true where `tree_id` is the pinned tree, so that the recorded results of the series must come out.
    """

    source: str
    commit: str
    tree_id: str
    series: listing.Series
    is_release: bool


def resolve(root: Path, repository: str = "", commit: str = "") -> Pin:
    """Pin of the committed engine, or of another repository or commit (ENGINE_REPO, ENGINE_COMMIT), without changing or fetching anything.

    Raises Failure E_PIN, E_PATCHES or E_CONFIG.
    """
    series = listing.read(root / listing.FOLDER)
    return _other(root, repository, commit, series) if repository or commit else release(root, series)


def release(root: Path, series: listing.Series) -> Pin:
    """The pinned tree of this repository. Raises Failure E_PIN where HEAD or the working tree holds another engine."""
    committed = head_tree(root)
    if committed != series.pin:
        raise _differs("HEAD", committed, series)
    require_clean(root, series)
    return Pin(str(root), git.ask(root, "rev-parse", "HEAD"), series.pin, series, is_release=True)


def head_tree(root: Path) -> str:
    """Tree id of the committed engine. Raises Failure E_PIN where there is none."""
    try:
        return git.ask(root, "rev-parse", "--verify", "--quiet", f"HEAD:{ENGINE}")
    except GitError as error:
        needed = "a Git clone of this repository with at least its last commit"
        remedy = "clone the repository with Git instead of unpacking an archive of it"
        found = f"no committed folder {ENGINE}/ in {root} ({error.said})"
        if "dubious ownership" in error.output:
            found, needed = f"Git asks who trusts {root}, as it belongs to another user", "a clone of your own"
            remedy = f"call as its owner, or: git config --global --add safe.directory '{root}'"
        raise Failure("E_PIN", found=found, needed=needed, remedy=remedy) from None


def require_clean(root: Path, series: listing.Series) -> None:
    """Raises Failure E_PIN where the working tree's engine differs from HEAD's, naming its tree id."""
    if git.ask(root, "status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none", "--", ENGINE):
        raise _differs("the working tree", working_tree(root), series)


def working_tree(root: Path) -> str:
    """Tree id of the engine's files as they lie there, computed beside the repository: its index and objects stay as they are."""
    with tempfile.TemporaryDirectory(prefix="engine-tree-") as beside:
        variables = {
            "GIT_INDEX_FILE": os.path.join(beside, "index"),
            "GIT_OBJECT_DIRECTORY": beside,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": git.objects(root),
        }
        for arguments in (("read-tree", "HEAD"), ("add", "--all", "--", ENGINE)):
            git.run(git.command(root, *arguments), variables=variables)
        # --missing-ok: trees outside engine/ need not be looked at.
        return git.run(git.command(root, "write-tree", f"--prefix={ENGINE}/", "--missing-ok"), variables=variables)[0].decode().strip()


def _differs(where: str, tree_id: str, series: listing.Series) -> Failure:
    return Failure("E_PIN", found=f"{ENGINE}/ of {where} is tree {tree_id}", needed=f"the pinned tree {series.pin}", remedy=PIN_REMEDY)


def _other(root: Path, repository: str, commit: str, series: listing.Series) -> Pin:
    source = repository or str(root)
    if not Path(source).exists():
        if len(commit) != COMMIT_DIGITS:
            raise Failure(
                "E_CONFIG",
                found=f"ENGINE_REPO={source}, which is no folder of this host, and ENGINE_COMMIT={commit or '(empty)'}",
                needed="ENGINE_COMMIT as a full commit id, so that a repository elsewhere is built as it was meant",
            )
        return Pin(source, commit, "", series, is_release=False)
    folder = Path(source).resolve()
    wanted = commit or "HEAD"
    try:
        full = git.ask(folder, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
        tree_id = git.ask(folder, "rev-parse", "--verify", "--quiet", f"{full}:{ENGINE}")
    except GitError as error:
        raise Failure(
            "E_PIN",
            found=f"no commit {wanted} with a folder {ENGINE}/ in {folder} ({error.said})",
            needed="a commit of a checkout of this engine",
            remedy="correct ENGINE_REPO or ENGINE_COMMIT",
        ) from None
    if not commit:
        # Without a commit the checkout as it lies there was meant; what is not committed would be left out silently.
        dirty = git.ask(folder, "status", "--porcelain", "--untracked-files=all", "--", ENGINE)
        if dirty:
            raise Failure(
                "E_PIN",
                found=f"{ENGINE}/ of {folder} is tree {working_tree(folder)}, not committed",
                needed=f"its committed tree {tree_id}, or ENGINE_COMMIT naming a commit",
                remedy="commit there, or set ENGINE_COMMIT",
            )
    return Pin(str(folder), full, tree_id, series, is_release=tree_id == series.pin)
