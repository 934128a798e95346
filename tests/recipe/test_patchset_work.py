"""The series is edited as commits, written back byte for byte, and moved to a new pin."""

from __future__ import annotations

from pathlib import Path

import pytest

from failure import Failure
from fixtures.patch_repository import STORY, PatchRepository, commit, files_of, git
from patchwork import listing, patchset, worktree


@pytest.fixture
def repository(tmp_path: Path) -> PatchRepository:
    return PatchRepository(tmp_path)


def reopen(repository: PatchRepository, place: Path) -> None:
    repository.work = place
    worktree.edit(repository.root, repository.series(), place)


def test_refreshing_an_unchanged_series_changes_nothing(repository: PatchRepository, tmp_path: Path):
    before = files_of(repository.root / "patches")
    reopen(repository, tmp_path / "again")
    assert list(worktree.refresh(repository.root, repository.series(), repository.work)) == []
    assert files_of(repository.root / "patches") == before


def test_the_work_tree_has_one_commit_per_patch_and_is_clean(repository: PatchRepository, tmp_path: Path):
    reopen(repository, tmp_path / "again")
    subjects = git(repository.work, "log", "--reverse", "--format=%s").splitlines()
    assert subjects[1:] == ["Story of 0001-host-tenth-line", "Story of 0002-host-second-file"]
    assert git(repository.work, "status", "--porcelain") == ""
    assert git(repository.work, "rev-parse", "HEAD^{tree}") == repository.series().result


def test_opening_the_same_series_twice_gives_the_same_commits(repository: PatchRepository, tmp_path: Path):
    reopen(repository, tmp_path / "one")
    first = git(repository.work, "rev-parse", "HEAD")
    reopen(repository, tmp_path / "two")
    assert git(repository.work, "rev-parse", "HEAD") == first


def test_an_open_work_tree_is_never_overwritten(repository: PatchRepository):
    (repository.work / "lockstep" / "extra.py").write_text("half done\n")
    worktree.edit(repository.root, repository.series(), repository.work)
    assert (repository.work / "lockstep" / "extra.py").read_text() == "half done\n"


def test_an_edit_reaches_the_files_and_still_verifies(repository: PatchRepository, tmp_path: Path):
    (repository.work / "lockstep" / "extra.py").write_text("EXTRA = 2\n")
    git(repository.work, "commit", "--quiet", "--all", "--amend", "--no-edit")
    repository.add_patch("0005-host-fourth", {"lockstep/fourth.py": "FOURTH = 4\n"})
    changed = worktree.refresh(repository.root, repository.series(), repository.work)
    assert sorted(changed) == [
        "docs/patches.md",
        "patches/0002-host-second-file.patch",
        "patches/0005-host-fourth.patch",
        "patches/series.yaml",
    ]
    patchset.verify(repository.pin())
    patchset.export(repository.pin(), tmp_path / "out")
    assert (tmp_path / "out" / "lockstep" / "extra.py").read_text() == "EXTRA = 2\n"
    assert (tmp_path / "out" / "lockstep" / "fourth.py").read_text() == "FOURTH = 4\n"


def test_a_dropped_commit_drops_its_patch(repository: PatchRepository):
    git(repository.work, "reset", "--quiet", "--hard", "HEAD~1")
    changed = worktree.refresh(repository.root, repository.series(), repository.work)
    assert sorted(changed) == ["docs/patches.md", "patches/0002-host-second-file.patch", "patches/series.yaml"]
    assert [patch.story.name for patch in repository.series().patches] == ["0001-host-tenth-line"]


def test_a_mode_change_and_a_binary_file_survive_the_round_trip(repository: PatchRepository, tmp_path: Path):
    (repository.work / "lockstep" / "long.py").chmod(0o755)
    (repository.work / "lockstep" / "table.bin").write_bytes(bytes(range(256)))
    repository.add_patch("0003-host-modes", {})
    worktree.refresh(repository.root, repository.series(), repository.work)
    patchset.export(repository.pin(), tmp_path / "out")
    written = files_of(tmp_path / "out")
    assert written["lockstep/long.py"][1] & 0o111 == 0o111
    assert written["lockstep/table.bin"][0] == bytes(range(256))


@pytest.mark.parametrize("trailer", listing.TRAILERS)
def test_a_commit_without_a_trailer_is_refused_by_name(repository: PatchRepository, trailer: str):
    text = STORY.format(name="0003-host-third", what="A third")
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{trailer}:"))
    (repository.work / "lockstep" / "third.py").write_text("THIRD = 3\n")
    commit(repository.work, text)
    before = files_of(repository.root / "patches")
    with pytest.raises(Failure) as caught:
        worktree.refresh(repository.root, repository.series(), repository.work)
    assert caught.value.code == "E_PATCHES"
    assert trailer in caught.value.found
    assert files_of(repository.root / "patches") == before


@pytest.mark.parametrize("name", ["0002-host-again", "0001-host-tenth-line", "3-host-x", "0003-Host-x", "0003"])
def test_a_number_used_twice_or_a_bad_name_is_refused(repository: PatchRepository, name: str):
    repository.add_patch(name, {"lockstep/third.py": "THIRD = 3\n"})
    with pytest.raises(Failure) as caught:
        worktree.refresh(repository.root, repository.series(), repository.work)
    assert caught.value.code == "E_PATCHES"


def test_uncommitted_work_and_empty_patches_are_refused(repository: PatchRepository):
    (repository.work / "lockstep" / "extra.py").write_text("half done\n")
    with pytest.raises(Failure, match="not committed"):
        worktree.refresh(repository.root, repository.series(), repository.work)
    git(repository.work, "checkout", "--quiet", "--", ".")
    git(repository.work, "commit", "--quiet", "--allow-empty", "--message", STORY.format(name="0003-host-empty", what="Nothing"))
    with pytest.raises(Failure, match="changes nothing"):
        worktree.refresh(repository.root, repository.series(), repository.work)


def test_pin_moves_the_series_to_the_committed_engine(repository: PatchRepository, tmp_path: Path):
    (repository.root / "engine" / "lockstep" / "more.py").write_text("MORE = 1\n")
    commit(repository.root, "more")
    with pytest.raises(Failure, match="E_PIN"):
        repository.pin()
    assert sorted(worktree.pin(repository.root, repository.series())) == ["docs/patches.md", "patches/series.yaml"]
    assert repository.series().pin == repository.head_tree()
    patchset.verify(repository.pin())
    assert list(worktree.pin(repository.root, repository.series())) == []


def test_pin_writes_the_text_that_refresh_would_when_a_patched_file_changed_far_from_its_hunks(repository: PatchRepository, tmp_path: Path):
    place = repository.root / "engine" / "lockstep" / "long.py"
    place.write_text(place.read_text().replace("line 15\n", "line fifteen\n"))
    commit(repository.root, "far from both hunks")
    worktree.pin(repository.root, repository.series())
    patchset.verify(repository.pin())
    reopen(repository, tmp_path / "again")
    assert list(worktree.refresh(repository.root, repository.series(), repository.work)) == []


def test_pin_refuses_an_uncommitted_engine_and_a_series_that_no_longer_fits(repository: PatchRepository):
    before = files_of(repository.root / "patches")
    place = repository.root / "engine" / "lockstep" / "long.py"
    place.write_text("a first line\n" + place.read_text())
    with pytest.raises(Failure) as caught:
        worktree.pin(repository.root, repository.series())
    assert caught.value.code == "E_PIN"
    commit(repository.root, "every hunk moves by a line")
    with pytest.raises(Failure) as caught:
        worktree.pin(repository.root, repository.series())
    assert caught.value.code == "E_PATCHES"
    assert "offset" in caught.value.found
    assert files_of(repository.root / "patches") == before


def test_a_series_that_no_longer_fits_is_rebased_in_the_work_tree(repository: PatchRepository, tmp_path: Path):
    place = repository.root / "engine" / "lockstep" / "long.py"
    place.write_text("a first line\n" + place.read_text())
    commit(repository.root, "every hunk moves by a line")
    repository.work = tmp_path / "again"
    assert worktree.edit(repository.root, repository.series(), repository.work)
    git(repository.work, "rebase", "--quiet", "--onto", worktree.ONTO, worktree.PINNED, worktree.BRANCH)
    worktree.refresh(repository.root, repository.series(), repository.work)
    assert repository.series().pin == repository.head_tree()
    patchset.verify(repository.pin())


def test_verify_refuses_a_file_that_fits_but_is_not_what_refresh_writes(repository: PatchRepository):
    place = repository.patch(1)
    place.write_bytes(place.read_bytes() + b"-- \na mail footer\n")
    repository.record_again(1)
    with pytest.raises(Failure, match="refresh writes"):
        patchset.verify(repository.pin())


def test_the_page_tells_every_story_and_the_trees(repository: PatchRepository):
    page = (repository.root / "docs" / "patches.md").read_text()
    series = repository.series()
    for patch in series.patches:
        assert all(text in page for text in (patch.story.name, patch.story.what, patch.story.why, patch.story.remove_when))
    assert series.pin in page
    assert series.result in page


def test_a_story_survives_its_message(repository: PatchRepository):
    for patch in repository.series().patches:
        assert listing.parse_message(listing.message(patch.story)) == patch.story
