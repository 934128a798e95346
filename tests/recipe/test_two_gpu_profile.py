"""The two-GPU profile: refused with a remedy where there is no GPU; where there are two, the same six steps through the docker command."""

import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from fixtures.clone_box import ROOT, Box
from recipe import files
from recipe.adapters import hub
from recipe.steps.weights import CHECKPOINT, DRAFTER, Snapshot


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def weights(box: Box, snapshot: Snapshot, name: str) -> Path:
    folder = box.home / ".cache/glm-5.3-flash/models" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    files.write_json(folder / hub.MARKER, {"revision": snapshot.revision, "files": {"config.json": 2}})
    return folder


class GpuHost:
    """The box with two GPUs, a Docker daemon and the published weights, all of them stand-ins."""

    def __init__(self, box: Box, place: Path) -> None:
        self.box, self.tools = box, place / "tools"
        tool(self.tools, "nvidia-smi", "printf '0, RTX PRO 6000, 97887\\n1, RTX PRO 6000, 97887\\n'")
        tool(self.tools, "docker", f'exec "{sys.executable}" "{self.tools}/stub_docker.py" "$@"')
        for name in ("stub_docker.py", "stub_server.py"):
            shutil.copy2(ROOT / "tests/fixtures" / name, self.tools / name)
        self.plan()
        self.checkpoint = weights(box, CHECKPOINT, "GLM-5.3-Flash-EXL3-4bpw")
        weights(box, DRAFTER, "GLM-5.3-Flash-DFlash2")
        self.settings = {"PROFILE": "two-gpu", "HOST": "127.0.0.1", "IMAGE_FREE_GIB": "0", "PATH": f"{self.tools}:{os.environ['PATH']}"}

    def plan(self, **plan: object) -> None:
        (self.tools / "plan.json").write_text(json.dumps(plan))

    def commands(self, verb: str) -> list[list[str]]:
        return [words for words in map(json.loads, (self.tools / "docker.log").read_text().splitlines()) if words[0] == verb]


@pytest.fixture
def host(box: Box, tmp_path: Path) -> GpuHost:
    return GpuHost(box, tmp_path)


def test_without_a_gpu_the_default_profile_stops_with_its_code_and_a_way_on(box: Box, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    for name in ("bash", "sh", "env", "dirname", "git"):
        tool(tools, name, f'exec "{shutil.which(name)}" "$@"')
    done = box.run(PROFILE="", PATH=str(tools))
    assert done.returncode == 5
    assert "[E_GPU]" in done.stderr
    assert "PROFILE=embedded" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_gpu_number_that_is_not_there_is_named(host: GpuHost) -> None:
    done = host.box.run(**host.settings, GPUS="0,3")
    assert done.returncode == 5
    assert "no GPU 3" in done.stderr


def test_start_reattach_and_stop_go_through_docker(host: GpuHost) -> None:
    box = host.box
    done = box.run(**host.settings)
    assert done.returncode == 0, done.stderr
    assert f"GLM-5.3-Flash-EXL3 is now LIVE! on port {box.port}" in done.stdout.splitlines()
    assert json.loads((host.tools / "docker.json").read_text())["context"] == ["Dockerfile", "engine", "engine-cuda.lock"]
    again = box.run(**host.settings)
    assert again.returncode == 0, again.stderr
    assert "[I_RUNNING]" in again.stdout
    assert len(host.commands("build")) == len(host.commands("run")) == 1
    assert box.stop(**host.settings).returncode == 0
    assert not box.is_listening()
    (archive,) = box.archives()
    with tarfile.open(archive) as tar:
        assert any(name.endswith("/docker.log") for name in tar.getnames())


def test_the_container_gets_what_it_needs_and_nothing_more(host: GpuHost) -> None:
    host.box.run(**host.settings)
    (run,) = host.commands("run")
    given = [run[place + 1] for place, word in enumerate(run) if word in ("--volume", "-v")]
    assert [mount.rpartition(":")[0].rpartition(":")[2] for mount in given if mount.endswith(":ro")] == ["/model", "/drafter"]
    assert [mount.rpartition(":")[0].rpartition(":")[2] for mount in given if mount.endswith(":rw")] == ["/logs"]
    options = run[: run.index("serve")]
    for pair in (["--cap-drop", "ALL"], ["--security-opt", "no-new-privileges"], ["--ipc", "private"], ["--gpus", '"device=0,1"']):
        assert pair in [options[place : place + 2] for place in range(len(options))]
    assert "--read-only" in options
    assert not {"--privileged", "--pid", "--cap-add", "--device"} & set(options)


def test_a_blank_answer_of_the_big_model_fails_the_smoke_test(host: GpuHost) -> None:
    host.plan(answer="!!!!!!!!!!!!")
    done = host.box.run(**host.settings)
    assert done.returncode == 15
    assert "over and over" in done.stderr
    assert len(host.box.archives()) == 1


def test_a_truncated_shard_is_not_ready(host: GpuHost) -> None:
    (host.checkpoint / "config.json").write_text("")
    assert not hub.is_complete(host.checkpoint, CHECKPOINT.revision)


def test_restart_keeps_the_running_container_when_the_build_fails(host: GpuHost) -> None:
    box = host.box
    box.run(**host.settings)
    before = box.record
    box.write("docker/Dockerfile", "# changed\n")
    tool(host.tools, "cp", "exit 1")
    done = box.run("restart", **host.settings)
    assert done.returncode == 10
    assert "[E_IMAGE]" in done.stderr
    assert box.record == before
    assert box.run("status", **host.settings).returncode == 0
