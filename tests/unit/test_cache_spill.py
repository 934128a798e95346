"""Memory on disk comes back as it was or not at all, and every way of not coming back has a name."""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lockstep.cache import spill as spill_module
from lockstep.cache.spill import SpillError, SpillFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SpillFolder]:
    spill = SpillFolder(tmp_path / "spill", 0)
    yield spill
    spill.close()


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "slot.kda": torch.randn(3, 4, 5, generator=generator),
        "pages.trunk.latents": torch.randn(2, 7, generator=generator).bfloat16(),
        "drafter.length": torch.tensor(130 + seed),
        "taps": torch.empty(0, 5, 8),
    }


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(one[name].dtype == two[name].dtype and torch.equal(one[name], two[name]) for name in one)


def test_what_was_written_comes_back_bit_for_bit(folder: SpillFolder):
    for number in range(9):
        folder.write(number, tensors(number))
    assert same(folder.read(8), tensors(8)), "while it may still be being written"
    folder.settle()
    assert all(same(folder.read(number), tensors(number)) for number in range(9))


def test_only_the_owner_may_read_the_files(folder: SpillFolder, tmp_path: Path):
    folder.write(1, tensors(1))
    folder.settle()
    assert (tmp_path / "spill").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "spill" / "rank0-1.kept").stat().st_mode & 0o777 == 0o600


def test_what_was_removed_is_gone_also_while_it_is_written(folder: SpillFolder, tmp_path: Path):
    for number in range(4):
        folder.write(number, tensors(number))
        folder.remove(number)
    folder.settle()
    with pytest.raises(SpillError, match="cannot be read"):
        folder.read(2)
    folder.write(9, tensors(9))
    folder.settle()
    assert [path.name for path in (tmp_path / "spill").glob("*.kept")] == ["rank0-9.kept"]


@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_changed_byte_anywhere_is_noticed(folder: SpillFolder, tmp_path: Path, place: int):
    folder.write(1, tensors(1))
    folder.settle()
    path = tmp_path / "spill" / "rank0-1.kept"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(SpillError, match="is not what was written"):
        folder.read(1)


def test_a_cut_file_and_another_states_file_are_noticed(folder: SpillFolder, tmp_path: Path):
    folder.write(1, tensors(1))
    folder.write(2, tensors(2))
    folder.settle()
    one, two = (tmp_path / "spill" / f"rank0-{number}.kept" for number in (1, 2))
    one.write_bytes(one.read_bytes()[:-8])
    two.replace(tmp_path / "spill" / "rank0-3.kept")
    for number in (1, 3):
        with pytest.raises(SpillError, match="is not what was written"):
            folder.read(number)


def test_a_disk_that_takes_no_more_is_named_and_leaves_no_half_file(folder: SpillFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with caplog.at_level(logging.WARNING, "lockstep.spill"):
            folder.write(1, tensors(1))
            folder.settle()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "rank0-1.kept was not written (File too large)" in caplog.text
    assert not list((tmp_path / "spill").glob("*.kept"))
    with pytest.raises(SpillError, match="cannot be read"):
        folder.read(1)
    folder.write(1, tensors(1))
    folder.settle()
    assert same(folder.read(1), tensors(1)), "the writer goes on when there is room again"


def two_ranks(folder: Path, build: str = "b") -> tuple[SpillFolder, SpillFolder]:
    return SpillFolder(folder, 0, build), SpillFolder(folder, 1, build)


def test_a_file_that_cannot_be_removed_stays_and_is_named(folder: SpillFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder.write(1, tensors(1))
    folder.settle()
    (tmp_path / "spill").rename(tmp_path / "elsewhere")
    (tmp_path / "spill").write_text("")
    folder.remove(1)
    assert "rank0-1.kept was not removed (Not a directory)" in caplog.text
    folder.write(2, tensors(2))
    folder.settle()
    with pytest.raises(SpillError, match="cannot be read"):
        folder.read(2)


def test_two_processes_do_not_share_a_folder_but_one_that_ends_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spill_module, "LOCK_WAIT_S", 0.2)
    first = SpillFolder(tmp_path, 0)
    with pytest.raises(SpillError, match="in use by another server"):
        SpillFolder(tmp_path, 0)
    monkeypatch.setattr(spill_module, "LOCK_WAIT_S", 20.0)
    threading.Timer(0.3, first.close).start()
    SpillFolder(tmp_path, 0).close()


def test_a_later_process_takes_over_what_all_ranks_have_whole_and_removes_the_rest(tmp_path: Path):
    written = two_ranks(tmp_path)
    for number, label in ((3, "three"), (8, "eight"), (5, "five"), (6, "cut"), (7, "other")):
        for rank, spill in enumerate(written):
            spill.write(number, tensors(10 * number + rank), label if number != 7 else f"{label} {rank}")
    written[0].write(9, tensors(9), "on one rank only")
    for spill in written:
        spill.close(30)
    for rank in (0, 1):
        for at, number in enumerate((8, 3, 5, 6, 7)):
            os.utime(tmp_path / f"rank{rank}-{number}.kept", (at, at))
    cut = tmp_path / "rank1-6.kept"
    cut.write_bytes(cut.read_bytes()[:-1])
    label = tmp_path / "rank0-8.kept"
    label.write_bytes(label.read_bytes().replace(b"eight", b"weird"))
    (tmp_path / "rank0-2.kept").write_bytes(b"left")
    (tmp_path / "rank1-4.part").write_bytes(b"half")
    ranks = two_ranks(tmp_path)
    size = (tmp_path / "rank0-3.kept").stat().st_size
    found = ranks[0].take_over(2)
    assert [(one.kept, one.label) for one in found] == [(3, "three"), (5, "five")]
    assert found[0].size_bytes == size
    names = {f"rank{rank}-{number}.kept" for rank in (0, 1) for number in (3, 5)}
    assert {path.name for path in tmp_path.glob("rank*-*")} == names
    assert all(same(spill.read(5), tensors(50 + rank)) for rank, spill in enumerate(ranks))
    for spill in ranks:
        spill.close()


def test_files_of_another_build_or_number_of_ranks_are_removed(tmp_path: Path):
    for build, ranks in (("other", 2), ("b", 1)):
        for spill in two_ranks(tmp_path):
            spill.write(1, tensors(1), "one")
            spill.close(30)
        (later := SpillFolder(tmp_path, 0, build)).take_over(ranks)
        assert not list(tmp_path.glob("rank*-*"))
        later.close()


def test_what_still_waits_when_the_process_ends_is_given_up_and_an_engine_that_broke_leaves_nothing(tmp_path: Path):
    ranks = two_ranks(tmp_path)
    for spill in ranks:
        spill.write(1, tensors(1), "one")
        spill.settle()
    ranks[1].close()
    ranks[0].write(2, tensors(2), "two")
    ranks[0].discard()
    assert not list(tmp_path.glob("rank*-1.kept"))
    ranks[0].close(30)
    assert not list(tmp_path.glob("rank*-*"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match=r"--spill-dir .*file/spill: Not a directory; needed: a folder this user may write to"):
        SpillFolder(tmp_path / "file" / "spill", 0)
