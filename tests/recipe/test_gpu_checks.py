"""What the driver tells of the GPUs becomes the right code, before anything is started."""

import os
import pwd
from pathlib import Path

import pytest

from fixtures.fake_gpus import UUIDS, FakeGpus
from recipe import config
from recipe.adapters import host
from recipe.checks import Finding, gpu
from recipe.job import Job
from recipe.steps.checks import wait_for_gpus
from recipe.ui import Ui


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    return FakeGpus(tmp_path / "tools")


def facts(gpus: FakeGpus) -> gpu.Gpus:
    return host.gpus({"PATH": gpus.path})


def told(gpus: FakeGpus, need: tuple[str, ...] = ("0", "1")) -> list[Finding]:
    known = facts(gpus)
    chosen = known.chosen(need)
    return [gpu.check(known, need), *filter(None, [gpu.room(chosen, 90000)]), *gpu.state(chosen, 85), *gpu.links(known, chosen)]


def codes(gpus: FakeGpus) -> set[str]:
    return {finding.code for finding in told(gpus)}


def job(gpus: FakeGpus, tmp_path: Path, **settings: str) -> Job:
    environment = {"PATH": gpus.path, "HOME": str(tmp_path), **settings}
    return Job(config.load(tmp_path, environment), environment, Ui(environment), "start")


def test_two_good_gpus_raise_no_warning(gpus: FakeGpus) -> None:
    found = told(gpus)
    assert {finding.code for finding in found} == {"I_GPU"}
    assert found[-1].found == "between GPU 0 and 1: PHB"


@pytest.mark.parametrize("words", [("1", "0"), (UUIDS[1], UUIDS[0][:12]), ("0000:c1:00.0", "00000000:01:00.0")])
def test_gpus_are_named_by_number_uuid_or_bus_id(gpus: FakeGpus, words: tuple[str, ...]) -> None:
    assert [one.index for one in facts(gpus).chosen(words)] == [1, 0]
    assert gpu.check(facts(gpus), words).code == "I_GPU"


@pytest.mark.parametrize(
    ("words", "found"), [(("0", "2"), "no GPU 2"), (("0", "GPU-99999999"), "no GPU GPU-99999999"), (("0", UUIDS[0]), "name the same GPU")]
)
def test_gpus_that_are_not_two_are_refused(gpus: FakeGpus, words: tuple[str, ...], found: str) -> None:
    finding = gpu.check(facts(gpus), words)
    assert finding.code == "E_GPU"
    assert found in finding.found


def test_a_driver_that_is_too_old_is_named(gpus: FakeGpus) -> None:
    gpus.say(1, driver="570.86.10")
    finding = gpu.check(facts(gpus), ("0", "1"))
    assert (finding.code, finding.found, finding.needed) == ("E_GPU", "driver 570.86.10", "driver 580 or later")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "NVIDIA H200"}, "W_GPU_MODEL"),
        ({"watts": "250.00"}, "W_POWER"),
        ({"celsius": "86"}, "E_GPU_HOT"),
        ({"reasons": "0x0000000000000040"}, "W_THROTTLE"),
        ({"width": "8"}, "W_PCIE"),
        ({"generation": "4"}, "W_PCIE"),
        ({"free": "89999"}, "E_GPU_MEMORY"),
        ({"used": "1000"}, "E_GPU_BUSY"),
    ],
)
def test_one_figure_out_of_line_is_one_code(gpus: FakeGpus, fields: dict[str, str], code: str) -> None:
    gpus.say(1, **fields)
    assert codes(gpus) == {"I_GPU", code}
    (finding,) = [finding for finding in told(gpus) if finding.code == code]
    assert "GPU 1" in finding.found


def test_figures_the_driver_does_not_tell_raise_no_warning(gpus: FakeGpus) -> None:
    gpus.say(0, watts="[N/A]", celsius="[N/A]", reasons="[N/A]", width="[N/A]", generation="[N/A]")
    assert codes(gpus) == {"I_GPU"}


def test_a_way_across_two_processors_is_told(gpus: FakeGpus) -> None:
    gpus.way("SYS")
    assert codes(gpus) == {"I_GPU", "W_PCIE"}


def test_a_program_on_a_gpu_is_named_with_number_and_owner(gpus: FakeGpus, tmp_path: Path) -> None:
    owner = pwd.getpwuid(os.geteuid()).pw_name
    gpus.programs((1, os.getpid(), 2048))
    finding = wait_for_gpus(job(gpus, tmp_path, GPU_WAIT_TIMEOUT="3600"))
    assert finding is not None
    assert finding.code == "E_GPU_BUSY"
    assert f"(process {os.getpid()} of {owner}), 2048 MiB" in finding.found


def test_memory_that_an_ended_program_has_not_given_back_is_waited_for(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.say(0, free="7000", used="90000")
    gpus.say_later(0, free="97200", used="0")
    assert wait_for_gpus(job(gpus, tmp_path)) is None


def test_memory_that_stays_taken_is_told_after_the_wait(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.say(0, free="7000", used="90000")
    finding = wait_for_gpus(job(gpus, tmp_path, GPU_WAIT_TIMEOUT="0"))
    assert finding is not None
    assert (finding.code, "90000 MiB of GPU 0" in finding.found) == ("E_GPU_BUSY", True)


def test_a_tool_that_fails_or_talks_nonsense_is_quoted(gpus: FakeGpus) -> None:
    (gpus.folder / "gpus.csv").write_text("No devices were found\n")
    assert "No devices were found" in gpu.check(facts(gpus), ("0", "1")).found
    assert "nvidia-smi cannot be run: No such file" in gpu.check(host.gpus({"PATH": "/nowhere"}), ("0", "1")).found
