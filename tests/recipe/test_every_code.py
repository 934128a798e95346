"""Codes that no other test fires, each from its real cause and with the exit status of its family. docs/code_tests.md lists all of them."""

import os
import platform
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import Box
from fixtures.gpu_host import GpuHost
from fixtures.ports import free_port
from recipe.adapters import host as facts
from recipe.checks import platform as platform_check
from recipe.checks import venv

NO_DRAFTER = {"OFFLINE": "1", "DFLASH2_FREE_GIB": "0"}


@pytest.fixture
def gpu_host(box: Box, tmp_path: Path) -> Iterator[GpuHost]:
    made = GpuHost(box, tmp_path)
    yield made
    made.close()


def on_path(folder: Path, *names: str) -> str:
    """A PATH with nothing on it but these tools."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return str(folder)


def on_terminal(box: Box, answer: str, **settings: str) -> tuple[int, str]:
    """Exit status and screen of a start on a terminal at which somebody types `answer`."""
    ours, theirs = pty.openpty()
    environment = box.environment | settings | {"TERM": "dumb"}
    running = subprocess.Popen(
        [str(box.root / "start.sh")], env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    screen, until = b"", time.monotonic() + 45
    while time.monotonic() < until:
        try:
            screen += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    return running.wait(5), screen.decode()


def without_drafter(gpu_host: GpuHost) -> dict[str, str]:
    shutil.rmtree(gpu_host.box.home / ".cache/glm-5.3-flash/models/GLM-5.3-Flash-DFlash2")
    return gpu_host.settings | NO_DRAFTER


def test_a_first_start_says_what_is_ready_and_a_second_what_differs(box: Box) -> None:
    first = box.run()
    assert "[I_READY]" in first.stdout
    assert "[I_TUNE]" in first.stdout
    second = box.run(PORT=str(free_port()))
    assert "[W_DIFFERS] PORT" in second.stderr
    stopped = box.stop()
    assert "[I_ARCHIVE]" in stopped.stdout
    assert "[I_STOPPED]" in stopped.stdout


def test_a_line_that_is_not_used_as_meant_is_told_at_a_start(box: Box) -> None:
    box.write(".env", "PROT=9\n")
    assert "[W_SETTING] .env line 1: PROT is no setting; PORT is" in box.run().stderr


def test_a_fault_of_this_program_is_one_line_with_its_place(box: Box) -> None:
    box.write("scripts/recipe/verbs/look.py", "raise RuntimeError('out of order')\n")
    done = box.run("status")
    assert done.returncode == 70
    assert re.search(r"\[E_INTERNAL\].*\n.*RuntimeError: out of order at look.py:1", done.stderr)
    assert "Traceback" not in done.stderr


def test_without_git_the_tool_is_named(box: Box, tmp_path: Path) -> None:
    done = box.run(PATH=on_path(tmp_path / "tools", "bash", "env", "dirname", "readlink"))
    assert done.returncode == 3
    assert "[E_DEPENDENCY]" in done.stderr
    assert "not on PATH: git" in done.stderr


def test_a_python_that_cannot_make_environments_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert venv.check(facts.python({"PATH": "/nowhere"})).code == "E_VENV"


def test_another_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    finding = platform_check.check(facts.machine(), ("x86_64", "aarch64"))
    assert (finding.code, finding.found) == ("E_PLATFORM", "Linux on riscv64")


def test_too_little_space_is_told_before_anything_is_built(box: Box) -> None:
    shutil.rmtree(box.home / ".cache/glm-5.3-flash/engines")
    done = box.run(IMAGE_FREE_GIB="100000")
    assert done.returncode == 6
    assert "[E_DISK]" in done.stderr
    assert "100000 GiB for the engine" in done.stderr


def test_space_is_asked_only_for_what_is_missing(box: Box) -> None:
    assert "[I_DISK] nothing is missing" in box.run("doctor", IMAGE_FREE_GIB="100000").stdout


def test_space_for_kernels_is_asked_until_they_are_compiled(gpu_host: GpuHost) -> None:
    given = gpu_host.settings | {"KERNEL_FREE_GIB": "100000"}
    assert "100000 GiB for compiled kernels" in gpu_host.box.run("doctor", **given).stderr
    assert gpu_host.box.run("prepare", **gpu_host.settings).returncode == 0
    assert "[I_DISK] nothing is missing" in gpu_host.box.run("doctor", **given).stdout


def test_a_log_folder_that_cannot_be_made_ends_the_start(box: Box) -> None:
    file = box.write("a-file", "")
    done = box.run(LOG_DIR=f"{file}/below")
    assert done.returncode == 17
    assert "[E_LOG]" in done.stderr


def test_there_is_nothing_to_go_back_to_at_first(box: Box) -> None:
    done = box.run("rollback")
    assert done.returncode == 13
    assert "[E_ROLLBACK]" in done.stderr


def test_a_wrong_answer_is_no_live_server(box: Box) -> None:
    box.set_engine("wrong", says={"word": {"content": "seldom"}})
    done = box.run()
    assert done.returncode == 15
    assert "[E_SMOKE]" in done.stderr


def test_one_rank_has_nothing_that_ranks_could_agree_on(box: Box) -> None:
    box.run()
    done = box.run("verify", "ranks")
    assert done.returncode == 18
    assert "[E_UNCHECKED]" in done.stderr


def test_gpus_in_containers_are_asked_for_with_a_container(gpu_host: GpuHost) -> None:
    assert "[I_NVIDIA_RUNTIME]" in gpu_host.box.run("doctor", **gpu_host.settings).stdout
    gpu_host.plan(no_gpus='could not select device driver "" with capabilities: [[gpu]]')
    done = gpu_host.box.run("doctor", **gpu_host.settings)
    assert done.returncode == 4
    assert "[E_NVIDIA_RUNTIME]" in done.stderr
    assert "could not select device driver" in done.stderr


@pytest.mark.parametrize(
    ("code", "status", "fields"),
    [
        ("E_GPU_HOT", 5, {"celsius": "97"}),
        ("E_GPU_MEMORY", 5, {"free": "50000"}),
        ("E_GPU_BUSY", 5, {"used": "50000"}),
        ("W_POWER", 0, {"watts": "250.00"}),
        ("W_THROTTLE", 0, {"reasons": "0x80"}),
        ("W_PCIE", 0, {"width": "4"}),
        ("W_GPU_MODEL", 0, {"name": "NVIDIA H200"}),
    ],
)
def test_a_gpu_out_of_line_ends_or_warns_before_a_start(gpu_host: GpuHost, code: str, status: int, fields: dict[str, str]) -> None:
    gpu_host.gpus.say(0, **fields)
    done = gpu_host.box.run("doctor", **gpu_host.settings, GPU_WAIT_TIMEOUT="0")
    assert done.returncode == status
    assert f"[{code}]" in done.stderr


def test_without_a_terminal_the_licence_is_a_warning_and_the_start_goes_on_to_the_download(gpu_host: GpuHost) -> None:
    done = gpu_host.box.run(**without_drafter(gpu_host))
    assert "[W_LICENSE] the DFlash2 drafter is for non-commercial use" in done.stderr
    assert "[I_HF_TOKEN] not set" in done.stdout
    assert "[E_DOWNLOAD]" in done.stderr
    assert done.returncode == 11
    assert "W_LICENSE" not in gpu_host.box.run("doctor", **gpu_host.settings, DRAFTER="mtp").stderr


def test_on_a_terminal_the_licence_is_asked_once_and_no_means_no(gpu_host: GpuHost) -> None:
    given = without_drafter(gpu_host)
    status, screen = on_terminal(gpu_host.box, "no", **given)
    assert status == 2
    assert screen.index("non-commercial use") < screen.index("Do you accept its terms?")
    assert "[E_LICENSE]" in screen
    assert "DRAFTER=mtp" in screen
    status, screen = on_terminal(gpu_host.box, "yes", **given)
    assert status == 11
    assert "[W_LICENSE]" in screen
    assert "W_LICENSE" not in gpu_host.box.run(**given).stderr
