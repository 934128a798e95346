"""The download against a hub on loopback that fails in every way a hub can: nothing bad is ever ready, and starting again goes on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import ROOT
from fixtures.stub_hub import REPOSITORY, REVISION, Hub
from recipe import files
from recipe.adapters import hub as adapter

SHARD = hashlib.sha256(b"shard").digest() * 20_000
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


def fetch(hub: Hub, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    told = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder.parent / "hub"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    words = [sys.executable, "-m", "recipe.adapters.hub", REPOSITORY, REVISION, str(folder)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "scripts")} | told | more
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


def is_whole(folder: Path) -> bool:
    same = all((folder / name).is_file() and (folder / name).read_bytes() == data for name, data in CONTENTS.items())
    assert adapter.is_complete(folder, REVISION) == same
    return same


def test_every_file_is_fetched_and_its_digest_is_kept(hub: Hub, folder: Path) -> None:
    done = fetch(hub, folder)
    assert done.returncode == 0, done.stderr
    assert is_whole(folder)
    told = files.read_json(folder / adapter.MARKER)
    assert told is not None
    assert told["digests"][BIG]["sha256"] == hashlib.sha256(SHARD).hexdigest()


@pytest.mark.parametrize("fault", ["truncate", "stall", "corrupt", "change", 500, 503, 429])
def test_a_fault_on_the_way_is_got_over(hub: Hub, folder: Path, fault: int | str) -> None:
    hub.faults[BIG] = [fault]
    done = fetch(hub, folder)
    assert done.returncode == 0, done.stderr
    assert is_whole(folder)


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


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with room for one of the two shards."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False).returncode != 0:
        pytest.skip("no filesystem can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_and_room_is_all_that_the_next_try_needs(hub: Hub, small: Path) -> None:
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
