"""Sums of two processes from card to card, on one card: the bits of a plain sum, and a choice that compares before it measures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.patched import export

pytestmark = pytest.mark.gpu
RANK = Path(__file__).parents[1] / "fixtures" / "peer_rank.py"


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("patched") / "engine")


def ranks(patched: Path, folder: Path, *words: str) -> list[str]:
    """What two processes say, in rank order."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(patched), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(RANK), str(folder / "store"), *words]
    processes = [
        subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    try:
        return [process.communicate(timeout=50)[0].strip().splitlines()[-1] for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_sums_of_two_processes_have_the_bits_of_a_plain_sum(patched: Path, tmp_path: Path):
    assert ranks(patched, tmp_path, "sums") == ["0 of 220 sums differ; alone: gave up", "0 of 220 sums differ"]


SAID = {"none": "peer: the peer exchange is faster", "bit": "library: rank 1: sum 0 of 8192 bytes: 1 of"}


@pytest.mark.parametrize("fault", list(SAID))
def test_the_peer_exchange_serves_only_where_it_brings_the_librarys_bits(patched: Path, tmp_path: Path, fault: str):
    assert [one.startswith(SAID[fault]) for one in ranks(patched, tmp_path, "choice", fault)] == [True, True]
