"""DRY_RUN=1 shows the whole plan and does nothing else."""

import os
import re
import shlex
from pathlib import Path

import pytest

from fixtures.clone_box import Box, processes_with, takes_less_than

CANARY = "canary-token-77aa"


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder of tools that leave a trace when they are used."""
    folder = tmp_path / "trap"
    folder.mkdir()
    for tool in ("docker", "nvidia-smi", "pip", "curl"):
        (folder / tool).write_text(f"#!/bin/sh\necho {tool} >> '{folder}/used'\nexit 1\n")
        (folder / tool).chmod(0o755)
    return folder


@pytest.mark.parametrize("profile", ["two-gpu", "embedded"])
@pytest.mark.parametrize("verb", ["start", "restart"])
def test_a_dry_run_shows_six_steps_and_changes_nothing(box: Box, trap: Path, profile: str, verb: str) -> None:
    before = box.tree()
    with takes_less_than(1.5):
        done = box.run(verb, PROFILE=profile, DRY_RUN="1", HF_TOKEN=CANARY, PATH=f"{trap}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\[(\d)/6\]", done.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5", "6"]
    assert "[I_DRY_RUN]" in done.stdout
    assert CANARY not in done.stdout + done.stderr
    assert box.tree() == before
    assert not (trap / "used").exists()


def test_the_two_gpu_plan_names_every_command_and_each_is_one_shell_line(box: Box) -> None:
    done = box.run(PROFILE="two-gpu", DRY_RUN="1")
    commands = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ") and not line.strip().startswith("#")]
    words = [shlex.split(line, comments=True) for line in commands]
    assert all(words)
    wanted = [["docker", "build"], ["docker", "run"], ["git", "init"]]
    assert [pair for pair in wanted if pair not in [word[:2] for word in words]] == []
    assert sum("recipe.adapters.hub" in line for line in commands) == 2
    runs = {next((verb for verb in ("peers", "tuning") if verb in word), "serve"): word for word in words if word[:2] == ["docker", "run"]}
    assert list(runs) == ["peers", "tuning", "serve"]
    for verb, run in runs.items():
        assert {"--read-only", "no-new-privileges", "ALL"} <= set(run)
        assert not {"--privileged", "--pid", "--cap-add", "--device"} & set(run[: run.index(verb)])


def test_a_dry_run_shows_what_a_run_executes(box: Box) -> None:
    plan = box.run(DRY_RUN="1").stdout
    box.run()
    (serve,) = [line for line in plan.splitlines() if "lockstep serve" in line]
    words = shlex.split(serve.split(">>")[0])
    shown = [re.sub("/.*<UTC time>-<process>", "{run}", word) for word in words[words.index("-m") :]]
    ran = box.record["launch"]["argv"]
    ran = ran[ran.index("-m") :]
    assert shown == ran


def test_a_dry_run_beside_a_running_server_leaves_it_alone(box: Box) -> None:
    box.run()
    before = box.record
    done = box.run("restart", DRY_RUN="1")
    assert done.returncode == 0, done.stderr
    assert "let the running server finish" in done.stdout
    assert box.stop(DRY_RUN="1").returncode == 0
    assert box.record == before
    assert len(processes_with("HOME", str(box.home))) == 2


def test_wrong_settings_are_refused_in_a_dry_run_too(box: Box) -> None:
    done = box.run(DRY_RUN="1", PORT="0")
    assert done.returncode == 2
    assert "[E_CONFIG]" in done.stderr


def test_an_edited_engine_is_refused_in_a_dry_run_too(box: Box) -> None:
    box.write("engine/content", "edited")
    before = box.tree()
    done = box.run(DRY_RUN="1")
    assert done.returncode == 9
    assert "[E_PIN]" in done.stderr
    assert box.tree() == before
    assert not Path(box.root / ".state").exists()
