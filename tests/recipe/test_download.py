"""The download against a hub on loopback that fails in every way a hub can: nothing bad is ever ready, and starting again goes on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import ROOT
from fixtures.stub_hub import REPOSITORY, REVISION, Hub
from fixtures.waiting import wait_until
from recipe.adapters import hub as adapter

SHARD = hashlib.sha256(b"shard").digest() * 16_384
CONTENTS = {"config.json": b'{"layers": 45}', "model-00001.safetensors": SHARD, "model-00002.safetensors": SHARD[::-1]}
BIG = "model-00001.safetensors"


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub(dict(CONTENTS))
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def words_of(folder: Path, stall_s: float = 30) -> list[str]:
    return [sys.executable, "-m", "recipe.adapters.hub", REPOSITORY, REVISION, str(folder), str(stall_s)]


def environment_of(hub: Hub, folder: Path, **more: str) -> dict[str, str]:
    told = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder.parent / "hub"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "scripts")} | told | more


def fetch(hub: Hub, folder: Path, stall_s: float = 30, **more: str) -> subprocess.CompletedProcess[str]:
    environment = environment_of(hub, folder, **more)
    return subprocess.run(words_of(folder, stall_s), env=environment, capture_output=True, text=True, timeout=60, check=False)


def as_nobody(hub: Hub, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ["setpriv", "--reuid", "65534", "--clear-groups", *words_of(folder)]
    done = subprocess.run(words, env=environment_of(hub, folder), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    return done


def is_whole(folder: Path) -> bool:
    same = all((folder / name).is_file() and (folder / name).read_bytes() == data for name, data in CONTENTS.items())
    assert adapter.is_complete(folder, REVISION) == same
    return same


def test_every_file_is_fetched_and_its_manifest_stays_beside_it(hub: Hub, folder: Path) -> None:
    done = fetch(hub, folder)
    assert done.returncode == 0, done.stderr
    assert is_whole(folder)
    told = adapter.manifest(folder, REVISION)
    assert told is not None
    assert told[BIG] == {"bytes": len(SHARD), "sha256": hashlib.sha256(SHARD).hexdigest(), "git": hub.facts(BIG)["blobId"]}
    assert adapter.missing_bytes(folder, REVISION) == 0
    assert adapter.manifest(folder, "f" * 40) is None


@pytest.mark.parametrize("fault", ["truncate", "stall", "corrupt", "change", 500, 503, 429])
def test_a_fault_on_the_way_is_got_over(hub: Hub, folder: Path, fault: int | str) -> None:
    hub.faults[BIG] = [fault]
    done = fetch(hub, folder)
    assert done.returncode == 0, done.stderr
    assert is_whole(folder)


def test_a_transfer_that_hangs_is_begun_again_from_where_it_was(hub: Hub, folder: Path) -> None:
    hub.faults[BIG] = ["hang"]
    began = time.monotonic()
    done = fetch(hub, folder, 3.0, HF_HUB_DOWNLOAD_TIMEOUT="600")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 30
    assert (
        f"nothing came for 3 s at {len(SHARD) * 3 // 2 + 14} of {2 * len(SHARD) + 14} bytes; beginning again by plain HTTP" in done.stderr
    )
    assert is_whole(folder)
    assert hub.sent[-1] == (BIG, f"bytes={len(SHARD) // 2}-")


def test_a_store_for_pieces_that_stays_silent_is_left_for_the_plain_way(hub: Hub, folder: Path) -> None:
    hub.has_xet = True
    done = fetch(hub, folder, 3.0)
    assert done.returncode == 0, done.stderr
    assert hub.asked_xet > 0
    assert "beginning again by plain HTTP" in done.stderr
    assert is_whole(folder)


def test_a_hub_that_never_sends_anything_ends_in_one_line(hub: Hub, folder: Path) -> None:
    # Half a file of less than a piece: nothing of it is ever written.
    hub.contents = {BIG: SHARD[:5000]}
    hub.faults[BIG] = ["hang"] * 99
    done = fetch(hub, folder, 0.5, HF_HUB_DOWNLOAD_TIMEOUT="600")
    assert done.returncode == 1
    assert "gave up after 5 tries" in done.stderr.strip().splitlines()[-1]
    assert not adapter.is_complete(folder, REVISION)


def test_a_killed_download_goes_on_from_its_part(hub: Hub, folder: Path) -> None:
    hub.faults[BIG] = ["hang"]
    process = subprocess.Popen(words_of(folder), env=environment_of(hub, folder, HF_HUB_DOWNLOAD_TIMEOUT="600"), stderr=subprocess.DEVNULL)
    wait_until(lambda: adapter.missing_bytes(folder, REVISION) == len(SHARD) // 2)
    process.kill()
    process.wait()
    assert not is_whole(folder)
    hub.sent.clear()
    assert fetch(hub, folder).returncode == 0
    assert is_whole(folder)
    assert {one for one in hub.sent if one[1] != "HEAD"} == {(BIG, f"bytes={len(SHARD) // 2}-")}
    assert not (folder / adapter.PARTS).exists()


def test_a_file_changed_without_changing_its_size_is_found_and_replaced(hub: Hub, folder: Path) -> None:
    assert fetch(hub, folder).returncode == 0
    with (folder / BIG).open("r+b") as file:
        file.write(bytes(1))
    assert not is_whole(folder)
    hub.sent.clear()
    assert fetch(hub, folder).returncode == 0
    assert is_whole(folder)
    assert {name for name, how in hub.sent if how != "HEAD"} == {BIG}


def test_a_folder_copied_with_its_manifest_is_proved_without_a_network(hub: Hub, folder: Path) -> None:
    assert fetch(hub, folder).returncode == 0
    for path in folder.iterdir():
        if path.is_file():
            os.utime(path)
    hub.close()
    assert not adapter.is_complete(folder, REVISION)
    assert fetch(hub, folder, HF_HUB_OFFLINE="1").returncode == 0
    assert is_whole(folder)


def test_offline_names_what_is_missing_and_asks_nobody(hub: Hub, folder: Path) -> None:
    done = fetch(hub, folder, HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "OFFLINE=1 fetches nothing" in done.stderr
    assert str(folder / adapter.MANIFEST) in done.stderr
    assert fetch(hub, folder).returncode == 0
    (folder / BIG).unlink()
    hub.sent.clear()
    done = fetch(hub, folder, HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert f"missing or different: {BIG}" in done.stderr
    assert hub.sent == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_folder_of_somebody_else_is_named_with_both_owners(hub: Hub) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(place, "model")
        folder.mkdir()
        done = as_nobody(hub, folder)
        assert f"{folder} belongs to root and nobody may not write there: sudo chown -R nobody {folder}" in done.stderr
        Path(place).chmod(0o700)
        assert f"{folder} may not be looked at by nobody" in as_nobody(hub, folder).stderr


def test_progress_says_how_much_how_fast_and_how_long() -> None:
    assert adapter.progress(44 * 10**9, 176 * 10**9, 50e6) == "44.00 of 176.00 GB (25 %), 50.0 MB/s, 0:44:00 left"
    assert adapter.progress(0, 10**9, 0) == "0.00 of 1.00 GB (0 %), 0.0 MB/s"


@pytest.mark.parametrize("name", ["config.json", BIG])
def test_a_file_that_never_comes_right_is_named_and_never_ready(hub: Hub, folder: Path, name: str) -> None:
    hub.faults[name] = ["corrupt"] * 9
    done = fetch(hub, folder)
    assert done.returncode == 1
    assert name in done.stderr.strip().splitlines()[-1]
    assert not is_whole(folder)
    hub.faults.clear()
    assert fetch(hub, folder).returncode == 0
    assert is_whole(folder)


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "no such repository or revision")],
)
def test_a_refusal_is_told_at_once_with_what_to_do(hub: Hub, folder: Path, status: int, words: str) -> None:
    hub.faults["api"] = [status] * 9
    done = fetch(hub, folder)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert words in last
    assert f"status {status}" in last
    assert not is_whole(folder)


def test_only_the_damaged_file_is_fetched_again(hub: Hub, folder: Path) -> None:
    assert fetch(hub, folder).returncode == 0
    (folder / adapter.MARKER).unlink()
    (folder / BIG).write_bytes(bytes(len(SHARD)))
    hub.sent.clear()
    assert fetch(hub, folder).returncode == 0
    assert is_whole(folder)
    assert {name for name, how in hub.sent if how != "HEAD"} == {BIG}


def test_a_truncated_or_missing_file_is_not_ready(hub: Hub, folder: Path) -> None:
    assert fetch(hub, folder).returncode == 0
    (folder / BIG).write_bytes(SHARD[:100])
    assert not is_whole(folder)
    (folder / BIG).unlink()
    assert not is_whole(folder)
    assert fetch(hub, folder).returncode == 0
    assert is_whole(folder)


def test_a_full_disk_is_told_and_room_is_all_that_the_next_try_needs(hub: Hub, small: Path) -> None:
    # Room for one of the two shards.
    folder = small / "model"
    done = fetch(hub, folder)
    assert done.returncode == 1
    assert "space" in done.stderr.strip().splitlines()[-1]
    assert not is_whole(folder)
    subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
    assert fetch(hub, folder).returncode == 0
    assert is_whole(folder)


def test_nobody_at_the_hub_is_one_line(hub: Hub, folder: Path) -> None:
    hub.close()
    done = fetch(hub, folder)
    assert done.returncode == 1
    assert "the hub or the way to it failed" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_two_starts_that_download_to_one_folder_take_turns(hub: Hub, folder: Path) -> None:
    hub.faults[BIG] = ["hang"]
    words = [words_of(folder, 1) for _ in range(2)]
    running = [subprocess.Popen(one, env=environment_of(hub, folder), stderr=subprocess.PIPE, text=True) for one in words]
    told = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert sum("waiting for it" in text for text in told) >= 1
    assert adapter.is_complete(folder, REVISION)
    assert [name for name, how in hub.sent if how != "HEAD"].count("config.json") == 1
