"""The pinned tree is exported exactly, and a series that does not fit exactly is refused with its code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from failure import Failure
from fixtures.patch_repository import PatchRepository, commit, files_of, git
from patchwork import engine, patchset


@pytest.fixture
def repository(tmp_path: Path) -> PatchRepository:
    return PatchRepository(tmp_path)


def refusal(repository: PatchRepository, destination: Path, **settings: str) -> Failure:
    with pytest.raises(Failure) as caught:
        patchset.export(repository.pin(**settings), destination)
    return caught.value


def test_the_export_is_the_pinned_tree_with_every_patch_and_its_recorded_id(repository: PatchRepository, tmp_path: Path):
    pin = repository.pin()
    tree_id = patchset.export(pin, tmp_path / "out")
    assert tree_id == pin.series.result != pin.tree_id
    lines = (tmp_path / "out" / "lockstep" / "long.py").read_text().splitlines()
    assert (lines[9], lines[29], len(lines)) == ("line ten", "line thirty", 40)
    assert (tmp_path / "out" / "lockstep" / "extra.py").read_text() == "EXTRA = 1\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["lockstep"]


def test_the_export_keeps_file_modes(repository: PatchRepository, tmp_path: Path):
    patchset.export(repository.pin(), tmp_path / "out")
    modes = {path: mode for path, (_, mode) in files_of(tmp_path / "out").items()}
    assert modes["lockstep/tool.sh"] & 0o111 == 0o111
    assert modes["lockstep/long.py"] & 0o111 == 0


def test_two_exports_hold_the_same_bytes(repository: PatchRepository, tmp_path: Path):
    pin = repository.pin()
    assert patchset.export(pin, tmp_path / "one") == patchset.export(pin, tmp_path / "two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_an_export_leaves_the_repository_as_it_was(repository: PatchRepository, tmp_path: Path):
    index = (repository.root / ".git" / "index").read_bytes()
    objects = files_of(repository.root / ".git" / "objects")
    patchset.export(repository.pin(), tmp_path / "out")
    patchset.verify(repository.pin())
    assert (repository.root / ".git" / "index").read_bytes() == index
    assert files_of(repository.root / ".git" / "objects") == objects
    assert not (tmp_path / "out.git-work").exists()


def test_planning_an_export_writes_nothing_and_shows_every_command(repository: PatchRepository, tmp_path: Path):
    before = files_of(tmp_path)
    lines = [action.line for action in patchset.actions(repository.pin(), tmp_path / "out")]
    assert files_of(tmp_path) == before
    text = "\n".join(lines)
    for part in ("read-tree", "0001-host-tenth-line.patch", "0002-host-second-file.patch", "write-tree", "checkout-index"):
        assert part in text


def test_the_printed_commands_do_in_a_shell_what_the_export_does(repository: PatchRepository, tmp_path: Path):
    pin = repository.pin()
    script = "\n".join(action.line for action in patchset.actions(pin, tmp_path / "shell"))
    subprocess.run(["bash", "-euc", script], check=True, capture_output=True)
    patchset.export(pin, tmp_path / "python")
    assert files_of(tmp_path / "shell") == files_of(tmp_path / "python")


def test_user_settings_of_git_do_not_change_a_byte(repository: PatchRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "home").mkdir()
    settings = "[core]\nautocrlf = true\n[apply]\nignoreWhitespace = change\nwhitespace = fix\n[diff]\nnoprefix = true\ncontext = 1\n"
    (tmp_path / "home" / ".gitconfig").write_text(settings)
    patchset.export(repository.pin(), tmp_path / "one")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    patchset.export(repository.pin(), tmp_path / "two")
    patchset.verify(repository.pin())
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


@pytest.mark.parametrize("how", ["changed", "added", "removed", "made executable"])
def test_an_edited_engine_is_refused_with_both_tree_ids(repository: PatchRepository, tmp_path: Path, how: str):
    place = repository.root / "engine" / "lockstep" / "long.py"
    if how == "changed":
        place.write_text("changed\n")
    elif how == "added":
        place.with_name("added.py").write_text("added\n")
    elif how == "removed":
        place.unlink()
    else:
        place.chmod(0o755)
    failure = refusal(repository, tmp_path / "out")
    git(repository.root, "add", "--all", "engine")
    git(repository.root, "commit", "--quiet", "--message", "the edit")
    assert failure.code == "E_PIN"
    assert repository.head_tree() in failure.found
    assert repository.series().pin in failure.needed
    assert "./start.sh patches pin" in failure.remedy
    assert repository.head_tree() in refusal(repository, tmp_path / "out").found


def test_files_that_git_ignores_are_no_edit(repository: PatchRepository, tmp_path: Path):
    cache = repository.root / "engine" / "lockstep" / "__pycache__"
    cache.mkdir()
    (cache / "long.pyc").write_bytes(b"compiled")
    assert patchset.export(repository.pin(), tmp_path / "out") == repository.series().result
    assert not (tmp_path / "out" / "lockstep" / "__pycache__").exists()


def test_a_patch_with_another_digest_is_refused(repository: PatchRepository, tmp_path: Path):
    place = repository.patch(1)
    place.write_bytes(place.read_bytes().replace(b"line ten", b"line zehn"))
    failure = refusal(repository, tmp_path / "out")
    assert failure.code == "E_PATCHES"
    assert "SHA-256" in failure.found


def test_a_patch_whose_result_is_another_tree_is_refused(repository: PatchRepository, tmp_path: Path):
    place = repository.patch(1)
    place.write_bytes(place.read_bytes().replace(b"line ten", b"line zehn"))
    repository.record_again(1)
    failure = refusal(repository, tmp_path / "out")
    assert failure.code == "E_PATCHES"
    assert repository.series().patches[0].tree_id in failure.needed


def damage(content: bytes, how: str) -> bytes:
    if how == "offset":
        return content.replace(b"@@ -7,7 +7,7 @@", b"@@ -9,7 +9,7 @@")
    if how == "fuzz":
        return content.replace(b" line 12\n", b" line twelve\n")
    if how == "reject":
        return content.replace(b"-line 10\n", b"-line 1010\n")
    if how == "white space":
        return content.replace(b" line 12\n", b" line  12\n")
    if how == "mode":
        return content.replace(b" 100644\n", b" 100755\n")
    if how == "line ends":
        return content.replace(b"\n", b"\r\n")
    if how == "cut":
        return content[: content.index(b" line 12")]
    return content.replace(b"+line ten", b"line ten")


WAYS = ["offset", "fuzz", "reject", "white space", "mode", "line ends", "cut", "malformed"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("is_release", [True, False])
def test_a_patch_that_does_not_fit_exactly_is_refused(repository: PatchRepository, tmp_path: Path, how: str, is_release: bool):
    place = repository.patch(1)
    damaged = damage(place.read_bytes(), how)
    assert damaged != place.read_bytes()
    place.write_bytes(damaged)
    repository.record_again(1)
    settings = {}
    if not is_release:
        # Another engine has no recorded result: only the strictness of applying stands between it and a wrong build.
        (repository.root / "engine" / "README").write_text("another engine\n")
        commit(repository.root, "another engine")
        settings = {"commit": git(repository.root, "rev-parse", "HEAD")}
    failure = refusal(repository, tmp_path / "out", **settings)
    assert failure.code == "E_PATCHES"
    assert place.name in failure.found
    assert not (tmp_path / "out").exists()


def test_a_patch_that_is_listed_but_missing_or_there_but_not_listed_is_refused(repository: PatchRepository, tmp_path: Path):
    place = repository.patch(2)
    place.rename(place.with_name("0003-host-stray.patch"))
    failure = refusal(repository, tmp_path / "out")
    assert failure.code == "E_PATCHES"
    assert place.name in failure.found
    assert "0003-host-stray.patch" in failure.found


@pytest.mark.parametrize(
    "text", ["", "pin: 1", "[]", '{"pin": "x", "patches": []}', '{"patches": []}', '{"pin": 3, "patches": [{"name": "a"}]}']
)
def test_a_series_file_that_says_nonsense_is_refused(repository: PatchRepository, tmp_path: Path, text: str):
    (repository.root / "patches" / "series.yaml").write_text(text)
    assert refusal(repository, tmp_path / "out").code == "E_PATCHES"


def test_a_repository_whose_objects_lack_the_tree_is_refused(repository: PatchRepository, tmp_path: Path):
    pin = repository.pin()
    tree_id = git(repository.root, "rev-parse", "HEAD:engine/lockstep")
    place = repository.root / ".git" / "objects" / tree_id[:2] / tree_id[2:]
    place.chmod(0o644)
    place.unlink()
    with pytest.raises(Failure) as caught:
        patchset.export(pin, tmp_path / "out")
    assert caught.value.code == "E_PIN"


def test_an_unpacked_archive_without_history_is_told_to_clone(repository: PatchRepository, tmp_path: Path):
    (repository.root / ".git").rename(tmp_path / "taken-away")
    failure = refusal(repository, tmp_path / "out")
    assert failure.code == "E_PIN"
    assert "clone" in failure.remedy


def test_another_checkout_goes_the_same_way(repository: PatchRepository, tmp_path: Path):
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(repository.root), str(other))
    (other / "engine" / "lockstep" / "more.py").write_text("MORE = 1\n")
    commit(other, "more")
    full = git(other, "rev-parse", "HEAD")
    for where, which in ((str(other), ""), (str(other), full), (f"file://{other}", full)):
        settings = {"source": where, "commit": which}
        pin = repository.pin(**settings)
        destination = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        tree_id = patchset.export(pin, destination)
        assert tree_id not in ("", repository.series().result)
        assert (destination / "lockstep" / "more.py").exists()
        assert "line ten" in (destination / "lockstep" / "long.py").read_text()


def test_another_checkout_with_edits_is_refused(repository: PatchRepository, tmp_path: Path):
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(repository.root), str(other))
    (other / "engine" / "lockstep" / "more.py").write_text("MORE = 1\n")
    assert refusal(repository, tmp_path / "out", source=str(other)).code == "E_PIN"


def test_a_repository_elsewhere_needs_a_full_commit_id(repository: PatchRepository, tmp_path: Path):
    assert refusal(repository, tmp_path / "out", source="ssh://git@127.0.0.1/engine.git").code == "E_CONFIG"


def test_the_digest_changes_with_the_tree_and_with_every_patch(repository: PatchRepository):
    pin = repository.pin()
    one = patchset.digest(pin)
    place = repository.patch(2)
    place.write_bytes(place.read_bytes() + b"\n")
    repository.record_again(2)
    two = patchset.digest(repository.pin())
    three = patchset.digest(engine.Pin(pin.source, pin.commit, "0" * 40, pin.series, is_release=False))
    assert len({one, two, three}) == 3
