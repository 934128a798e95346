"""Archives of runs: whole or not there, private, and nothing that is not a run folder is ever packed or removed."""

import itertools
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from failure import Failure
from recipe import runlog


def run_folder(log_dir: Path) -> Path:
    folder = runlog.create(log_dir)
    (folder / runlog.SERVER_LOG).write_text("first\nlast\n")
    return folder


def test_a_run_folder_is_private_and_current_points_at_the_newest(tmp_path: Path) -> None:
    first, second = runlog.create(tmp_path), runlog.create(tmp_path)
    assert first != second
    assert second.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "current").resolve() == second


def test_an_archive_replaces_the_folder_and_the_link_to_it(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    packed = runlog.archive(folder, 10)
    assert packed is not None
    assert [path.name for path in tmp_path.iterdir()] == [packed.name]
    with tarfile.open(packed) as tar:
        (member,) = [one for one in tar.getmembers() if one.isfile()]
        assert member.name == f"{folder.name}/{runlog.SERVER_LOG}"


def test_a_folder_that_no_run_made_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    linked = tmp_path / "glm53-20260101T000000Z-1"
    linked.symlink_to(precious)
    assert runlog.archive(precious, 10) is None
    assert runlog.archive(linked, 10) is None
    assert precious.is_dir()


def test_an_archive_of_an_earlier_try_is_not_overwritten(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    runlog.archive_of(folder).write_bytes(b"whole already")
    packed = runlog.archive(folder, 10)
    assert packed is not None
    assert packed.read_bytes() == b"whole already"
    assert not folder.exists()


def test_a_pack_that_fails_keeps_the_raw_logs_and_no_half_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(Failure) as caught:
        runlog.archive(folder, 10)
    assert caught.value.code == "E_LOG"
    assert "No space left" in caught.value.found
    assert (folder / runlog.SERVER_LOG).exists()
    assert list(tmp_path.glob("*.tar.gz*")) == list(tmp_path.glob(".*tar.gz*")) == []


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_the_newest_archives_stay(tmp_path: Path, keep: int) -> None:
    made = [runlog.archive(run_folder(tmp_path), 10) for _ in range(3)]
    runlog.archive(run_folder(tmp_path), keep)
    left = [path.name for path in tmp_path.glob("*.tar.gz")]
    assert len(left) == keep
    assert made[0] is not None
    assert made[0].name not in left


def test_the_tail_of_a_log_has_no_control_characters_and_no_blank_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\n\x1b[31mtwo\n\n\xff three\tx\n")
    assert runlog.tail(log, 2) == ["?[31mtwo", "\ufffd three\tx"]
    assert runlog.tail(tmp_path / "missing", 2) == []


def test_a_disk_that_is_full_keeps_the_raw_logs_and_no_half_archive(small: Path) -> None:
    folder = run_folder(small)
    noise = os.urandom(700 * 1024)
    (folder / "docker.log").write_bytes(noise)
    with pytest.raises(Failure) as caught:
        runlog.archive(folder, 10)
    assert caught.value.code == "E_LOG"
    assert "No space left" in caught.value.found
    assert (folder / "docker.log").read_bytes() == noise
    assert [path.name for path in small.iterdir() if "tar" in path.name] == []
    subprocess.run(["mount", "-o", "remount,size=4m", str(small)], check=True)
    packed = runlog.archive(folder, 10)
    assert packed is not None
    with tarfile.open(packed) as tar:
        member = tar.extractfile(f"{folder.name}/docker.log")
        assert member is not None
        assert member.read() == noise
    assert not folder.exists()


def test_a_followed_log_loses_no_line_and_cuts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runlog, "FOLLOW_EVERY_S", 0)
    log, count = tmp_path / "log", itertools.count()
    log.write_bytes(b"gone\nlast\n")

    def goes_on() -> bool:
        # Between any two looks something is written, half a line at a time.
        with log.open("ab") as file:
            for number in itertools.islice(count, 5):
                file.write(b"%d\n" % (number // 2) if number % 2 else b"line ")
        return next(count) < 60

    *shown, end = runlog.follow(log, 1, goes_on)
    whole = log.read_bytes().decode().splitlines()[1:]
    assert [*shown, end] == [line for line in whole if line][-len(shown) - 1 :]
    assert len(shown) > 20
