"""Changes the series: a work tree with one commit per patch, the files written back from it, a new pin. Applies nothing to a build."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from failure import Failure
from patchwork import engine, git, listing, page, patchset
from patchwork.engine import Pin
from patchwork.listing import Patch, Series, Story

BRANCH = "patches"
PINNED, ONTO = "pinned", "onto"
IDENTITY = (("user.name", "patch series"), ("user.email", "patches@localhost"))
# The same commits come out each time the same series is opened.
DATES = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}


def _refuse(found: str, needed: str, remedy: str) -> Failure:
    return Failure("E_PATCHES", found=found, needed=needed, remedy=remedy)


def pinned(root: Path, series: Series) -> Pin:
    """The pin as recorded, whether or not the engine has moved on since."""
    return Pin(str(root), "", series.pin, series, is_release=True)


def edit(root: Path, series: Series, work: Path) -> bool:
    """Open the series as commits in `work`; True where the engine has moved on and branch `onto` holds it for a rebase.

    A work tree that is there already is kept as it is. Raises Failure E_PIN or E_PATCHES.
    """
    head = engine.head_tree(root)
    if not (work / ".git").exists():
        making = work.with_name(f".{work.name}.unfinished")
        shutil.rmtree(making, ignore_errors=True)
        making.parent.mkdir(parents=True, exist_ok=True)
        _open(root, series, making, head)
        making.rename(work)
    return head != series.pin


def _open(root: Path, series: Series, work: Path, head: str) -> None:
    for action in patchset.opening(work, pinned(root, series)):
        action.run()
    for name, value in IDENTITY:
        git.ask(work, "config", name, value)
    parent = _commit(work, series.pin, f"engine: the pinned tree {series.pin}\n")
    git.ask(work, "update-ref", f"refs/heads/{PINNED}", parent)
    for patch, _, tree_id in patchset.apply_each(work, series):
        parent = _commit(work, tree_id, listing.message(patch.story), parent)
    git.ask(work, "symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
    git.ask(work, "update-ref", f"refs/heads/{BRANCH}", parent)
    git.ask(work, "checkout-index", "--all", "--force")
    if head != series.pin:
        git.ask(work, "update-ref", f"refs/heads/{ONTO}", _commit(work, head, f"engine: the committed tree {head}\n"))


def _commit(work: Path, tree_id: str, message: str, parent: str = "") -> str:
    argv = git.command(work, "commit-tree", tree_id, *(("-p", parent) if parent else ()))
    return git.run(argv, stdin=message.encode(), variables=DATES)[0].decode().strip()


def refresh(root: Path, series: Series, work: Path) -> Sequence[str]:
    """Write the series back from the commits of `work`; returns the names of files that changed. Raises Failure E_PATCHES."""
    if not (work / ".git").exists():
        raise _refuse(f"no work tree {work}", "one", "./start.sh patches edit")
    if git.ask(work, "status", "--porcelain", "--untracked-files=all"):
        raise _refuse(f"changes in {work} that are not committed", "one commit for each patch", "commit or undo them")
    base, *commits = git.ask(work, "rev-list", "--reverse", "--topo-order", "HEAD").splitlines()
    if git.ask(work, "rev-list", "--merges", "HEAD"):
        raise _refuse(f"a merge in {work}", "one commit after the other", "git rebase in the work tree")
    base_tree = _tree(work, base)
    if base_tree not in (series.pin, engine.head_tree(root)):
        raise _refuse(
            f"{work} starts from tree {base_tree}",
            f"the pinned tree {series.pin} or the committed engine",
            "remove the work tree, ./start.sh patches edit, and change it anew",
        )
    steps = []
    before = base_tree
    for commit in commits:
        after = _tree(work, commit)
        steps.append((listing.parse_message(git.ask(work, "log", "-1", "--format=%B", commit)), before, after))
        before = after
    return write(series, base_tree, steps, work)


def _tree(repository: Path, commit: str) -> str:
    return git.ask(repository, "rev-parse", f"{commit}^{{tree}}")


def pin(root: Path, series: Series) -> Sequence[str]:
    """Pin the committed engine, the series applied to it exactly; returns the names of changed files. Raises Failure E_PIN or E_PATCHES."""
    head = engine.head_tree(root)
    engine.require_clean(root, replace(series, pin=head))
    with patchset.scratch_repository(pinned(root, replace(series, pin=head))) as scratch:
        steps = [(patch.story, before, after) for patch, before, after in patchset.apply_each(scratch, series)]
        return write(series, head, steps, scratch)


def write(series: Series, base_tree: str, steps: Sequence[tuple[Story, str, str]], repository: Path) -> Sequence[str]:
    """Write patch files, `series.yaml` and its page from stories and tree ids before and after; returns what changed."""
    contents: dict[str, bytes] = {}
    patches = []
    for story, before, after in steps:
        if before == after:
            raise _refuse(f"patch {story.name} changes nothing", "a change", "drop its commit in the work tree")
        content = listing.compose(story, patchset.diff(repository, before, after))
        patches.append(Patch(story, listing.sha256(content), after))
        contents[patches[-1].file] = content
    written = listing.check_order(replace(series, pin=base_tree, patches=tuple(patches)))
    root = series.folder.parent
    files = {f"{series.folder.name}/{name}": content for name, content in contents.items()}
    files[f"{series.folder.name}/{listing.SERIES_FILE}"] = listing.text(written).encode()
    files[page.PAGE] = page.page(written).encode()
    gone = [path for path in series.folder.glob("*.patch") if path.name not in contents]
    changed = [name for name, content in files.items() if _content(root / name) != content]
    for name in changed:
        (root / name).parent.mkdir(exist_ok=True)
        _write(root / name, files[name])
    for path in gone:
        path.unlink()
    return [*changed, *(str(path.relative_to(root)) for path in gone)]


def _write(place: Path, content: bytes) -> None:
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(place)


def _content(place: Path) -> bytes | None:
    return place.read_bytes() if place.exists() else None
