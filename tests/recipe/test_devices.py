"""Step 4: bytes between the GPUs are asked for at every start, launch tables are whole, of this build and these cards, or not used."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import ROOT, Box
from fixtures.gpu_host import GpuHost
from lockstep.config.serving import ServingOptions
from recipe.adapters import pci


@pytest.fixture
def host(box: Box, tmp_path: Path) -> Iterator[GpuHost]:
    made = GpuHost(box, tmp_path)
    yield made
    made.close()


def tables(host: GpuHost) -> list[Path]:
    return list((host.box.home / ".cache/glm-5.3-flash/kernels").rglob("launch-table-*.json"))


def tunings(host: GpuHost) -> int:
    return sum("tuning" in body["Cmd"] for body in host.asked("work POST /containers/create"))


def test_a_start_asks_the_gpus_tunes_once_and_says_how_fast_bytes_pass(host: GpuHost) -> None:
    done = host.box.run(**host.settings)
    assert done.returncode == 0, done.stderr
    assert "[I_P2P] copy 40.5 GiB/s, gather 21 GiB/s, all-reduce 18.25 GiB/s" in done.stdout
    probe, tune = host.asked("work POST /containers/create")
    assert probe["Cmd"] == ["-m", "peers", "--device", "cuda", "--timeout", "60"]
    (table,) = tables(host)
    forms = ["--device", "cuda", "--dense", "q4", "--ranks", "2"]
    assert tune["Cmd"] == ["-m", "tuning", "--model", "/model", "--out", f"/kernels/{table.name}", *forms]
    assert f"launch table {table}: 5 of 12 launches faster than by default" in done.stdout
    (served,) = host.asked("POST /containers/create")
    assert served["Cmd"][-2:] == ["--launch-table", f"/kernels/{table.name}"]
    for told in (probe, tune):
        given = told["HostConfig"]
        assert given["NetworkMode"] == "none"
        assert given["ReadonlyRootfs"]
        assert given["CapDrop"] == ["ALL"]
        assert given["DeviceRequests"][0]["DeviceIDs"] == ["0", "1"]
        assert told["Entrypoint"] == ["/opt/engine/bin/python"]
    host.box.stop(**host.settings)
    again = host.box.run(**host.settings)
    assert "[I_READY] launch table" in again.stdout
    assert tunings(host) == 1
    assert host.asked("POST /containers/create")[1]["Cmd"] == served["Cmd"]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("hang", "gather: rank 1 did not answer within 60 s"),
        ("wrong", "3 of 67108864 differ, the first at 9: 0 came, 7 was sent"),
        ("crash", "all-reduce: rank 1 ended by signal 11 (SIGSEGV)"),
    ],
)
def test_gpus_that_do_not_get_each_others_bytes_end_the_start_with_all_that_is_known(host: GpuHost, kind: str, found: str) -> None:
    host.plan(peers=kind)
    done = host.box.run(**host.settings)
    assert done.returncode == 12
    assert "[E_P2P]" in done.stderr
    for part in (found, "between GPU 0 and 1: PHB", "IOMMU o", "P2P=off"):
        assert part in done.stderr
    assert host.asked("POST /containers/create") == []
    assert len(host.box.archives()) == 1


def test_without_the_direct_way_only_the_other_one_is_asked_and_the_price_is_told(host: GpuHost) -> None:
    done = host.box.run(**host.settings, P2P="off")
    assert done.returncode == 0, done.stderr
    assert "[W_P2P]" in done.stderr
    probe = host.asked("work POST /containers/create")[0]
    assert "--no-direct" in probe["Cmd"]
    assert "NCCL_P2P_DISABLE=1" in probe["Env"]
    assert "NCCL_P2P_DISABLE=1" in host.asked("POST /containers/create")[0]["Env"]


def test_a_running_server_outlives_a_probe_that_fails(host: GpuHost) -> None:
    assert host.box.run(**host.settings).returncode == 0
    before = host.box.record
    host.plan(peers="hang")
    done = host.box.run("restart", **host.settings)
    assert done.returncode == 12
    assert host.box.record == before
    assert host.box.is_listening()


def test_a_bad_candidate_is_told_in_the_compilers_words_and_leaves_no_table(host: GpuHost) -> None:
    host.plan(tuning="bad")
    done = host.box.run(**host.settings)
    assert done.returncode == 12
    assert "[E_AUTOTUNE]" in done.stderr
    assert 'experts/grouped.cu(41): error: identifier "tile" is undefined' in done.stderr
    assert tables(host) == []
    assert "TUNE=0" in done.stderr
    without = host.box.run(**host.settings, TUNE="0")
    assert without.returncode == 0, without.stderr
    assert "[I_TUNE] TUNE=0" in without.stdout
    assert tunings(host) == 1
    host.box.stop(**host.settings)
    host.plan()
    assert host.box.run(**host.settings).returncode == 0
    assert len(tables(host)) == 1


@pytest.mark.parametrize("kind", ["partial", "stuck"])
def test_a_table_that_is_not_whole_or_late_is_never_ready(host: GpuHost, kind: str) -> None:
    host.plan(tuning=kind)
    done = host.box.run(**host.settings, TUNE_TIMEOUT="1")
    assert "[E_AUTOTUNE]" in done.stderr
    assert tables(host) == []
    assert len(host.asked("work DELETE /containers/glm53-tf-2x-work")) == 2


def test_other_cards_another_driver_another_form_or_a_touched_table_are_tuned_for_again(host: GpuHost) -> None:
    def start(**settings: str) -> int:
        assert host.box.run("prepare", **host.settings, **settings).returncode == 0
        return tunings(host)

    assert start() == 1
    assert start() == 1
    host.gpus.say(1, driver="581.00")
    assert start() == 2
    for number in (0, 1):
        host.gpus.say(number, name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", driver="581.00")
    assert start() == 3
    assert start(DENSE="fp8") == 4
    # A table is nobody else's: what was served before finds its own again.
    assert start() == 4
    newest = max(tables(host), key=lambda path: path.stat().st_mtime)
    newest.write_text(json.dumps({"complete": True, "entries": ["touched"]}))
    assert start(DENSE="fp8") == 5


def test_a_build_without_tables_says_so_and_serves(host: GpuHost) -> None:
    host.plan(tuning="none")
    done = host.box.run(**host.settings)
    assert done.returncode == 0, done.stderr
    assert "[I_TUNE] this build makes no launch tables" in done.stdout
    assert "--launch-table" not in host.asked("POST /containers/create")[0]["Cmd"]


def test_the_tuner_itself_takes_these_words_and_says_what_is_read(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    words = ["--model", str(ROOT / "embedded"), "--out", str(table), "--device", "cpu", "--dense", "q4", "--ranks", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "engine"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "tuning", *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"table": str(table), "complete": True, "entries": 0, "changed": 0}
    assert json.loads(table.read_text())["complete"] is True
    assert ServingOptions.from_argv(["--model", "x", "--launch-table", str(table)]).launch_table == table


def test_cards_of_two_kinds_share_no_table(host: GpuHost) -> None:
    host.gpus.say(1, name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
    done = host.box.run("prepare", **host.settings)
    assert done.returncode == 0, done.stderr
    assert "the GPUs are of two kinds" in done.stdout
    assert tunings(host) == 0


def test_a_restart_with_another_form_leaves_the_table_of_the_running_server_alone(host: GpuHost) -> None:
    host.box.run(**host.settings)
    (table,) = tables(host)
    done = host.box.run("restart", **host.settings, DENSE="fp8")
    assert done.returncode == 0, done.stderr
    assert tables(host) == [table]
    assert "--launch-table" not in host.asked("POST /containers/create")[1]["Cmd"]


def test_nothing_is_measured_while_a_server_uses_the_gpus(host: GpuHost) -> None:
    host.plan(tuning="none")
    assert host.box.run(**host.settings).returncode == 0
    done = host.box.run("restart", **host.settings)
    assert done.returncode == 0, done.stderr
    assert "a server works on these GPUs" in done.stdout
    assert tunings(host) == 1


def config_space(acs: int | None) -> bytes:
    """A bridge's configuration: an empty capability, then one for access control with this control word."""
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 0x200 << 20 if acs is not None else 0x0001)
    if acs is not None:
        struct.pack_into("<IHH", space, 0x200, 0x000D, 0, acs)
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (config_space(0x1D), "ACS sends peers' requests the long way at 0000:00:01.1"),
        (config_space(0x01), "ACS does not redirect"),
        (config_space(None), "ACS does not redirect"),
        (bytes(64), "ACS can only be read by root"),
    ],
)
def test_the_kernel_is_asked_for_what_lies_between_the_gpus(tmp_path: Path, space: bytes, told: str) -> None:
    bridge = tmp_path / "devices/pci0000:00/0000:00:01.1"
    device = bridge / "0000:c1:00.0"
    device.mkdir(parents=True)
    (bridge / "config").write_bytes(space)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:c1:00.0").symlink_to(device)
    for group in ("1", "2"):
        (tmp_path / "kernel/iommu_groups" / group).mkdir(parents=True)
    (tmp_path / "cmdline").write_text("quiet amd_iommu=on iommu=pt\n")
    facts = pci.peer_facts(["00000000:C1:00.0"], tmp_path, tmp_path / "cmdline")
    assert facts == ["IOMMU on (2 groups), kernel told amd_iommu=on iommu=pt", told]
    assert pci.peer_facts([], tmp_path / "nowhere", tmp_path / "nowhere") == ["IOMMU off"]
