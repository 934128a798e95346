"""The two-GPU profile: refused with a remedy where there is no GPU; where there are two, the same six steps through the Docker engine."""

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.clone_box import Box
from fixtures.fake_gpus import UUIDS
from fixtures.gpu_host import GpuHost
from fixtures.stub_hub import Hub
from recipe.adapters import hub as downloads
from recipe.steps.weights import CHECKPOINT


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def host(box: Box, tmp_path: Path) -> Iterator[GpuHost]:
    made = GpuHost(box, tmp_path)
    yield made
    made.close()


def test_without_a_gpu_the_default_profile_stops_with_its_code_and_a_way_on(box: Box, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    for name in ("bash", "sh", "env", "dirname", "readlink", "git"):
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
    again = box.run(**host.settings)
    assert again.returncode == 0, again.stderr
    assert "[I_RUNNING]" in again.stdout
    assert len(host.asked("POST /containers/create")) == 1
    assert box.stop(**host.settings).returncode == 0
    assert not box.is_listening()
    (archive,) = box.archives()
    with tarfile.open(archive) as tar:
        assert any(name.endswith("/docker.log") for name in tar.getnames())


def test_the_container_gets_both_gpus_the_weights_to_read_and_a_place_for_kernels(host: GpuHost) -> None:
    host.box.run(**host.settings)
    (told,) = host.asked("POST /containers/create")
    given = told["HostConfig"]
    (request,) = given["DeviceRequests"]
    assert (request["DeviceIDs"], request["Capabilities"]) == (["0", "1"], [["gpu"]])
    assert given["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    assert given["ShmSize"] == 32 << 30
    mounts = {mount["Target"]: mount["ReadOnly"] for mount in given["Mounts"]}
    assert mounts == {"/model": True, "/drafter": True, "/key": True, "/logs": False, "/kernels": False}
    assert {"NCCL_P2P_LEVEL=SYS", "NCCL_MIN_NCHANNELS=4", "NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME=lo"} <= set(told["Env"])
    assert {"TRITON_CACHE_DIR=/kernels/TRITON_CACHE_DIR", "HF_HUB_OFFLINE=1"} <= set(told["Env"])


def test_a_container_of_the_same_name_that_is_not_this_ones_is_told_before_anything_is_prepared(host: GpuHost) -> None:
    box = host.box
    box.run(**host.settings)
    asked = (host.place / "asked.jsonl").read_text()
    done = box.run(**host.settings, STATE_DIR=str(box.root / "another"), PORT="1")
    assert done.returncode == 2
    assert f"CONTAINER_NAME is taken: container glm53-tf-2x of {box.record['folder']} (running)" in done.stderr
    assert "docker rm --force glm53-tf-2x" in done.stderr
    assert (host.place / "asked.jsonl").read_text() == asked
    assert box.run("doctor", **host.settings).returncode == 0


def test_doctor_asks_on_where_nobody_knows_whether_the_server_lives(host: GpuHost) -> None:
    host.box.run(**host.settings)
    host.engine.kill()
    host.engine.wait()
    done = host.box.run("doctor", **host.settings)
    assert done.returncode == 4
    assert "[E_DOCKER]" in done.stderr
    assert "[I_AUTH]" in done.stdout


def test_a_collapsed_answer_of_the_big_model_fails_the_smoke_test(host: GpuHost) -> None:
    host.plan(says={"word": {"content": "!" * 12}})
    done = host.box.run(**host.settings)
    assert done.returncode == 15
    assert "[E_COLLAPSED]" in done.stderr
    assert len(host.box.archives()) == 1


def test_a_truncated_shard_is_not_ready(host: GpuHost) -> None:
    (host.checkpoint / "config.json").write_text("")
    assert not downloads.is_complete(host.checkpoint, CHECKPOINT.revision)


def test_restart_keeps_the_running_container_when_the_build_fails(host: GpuHost) -> None:
    box = host.box
    box.run(**host.settings)
    before = box.record
    host.images({})
    done = box.run("restart", **host.settings)
    assert done.returncode == 10
    assert "[E_IMAGE]" in done.stderr
    assert box.record == before
    assert box.run("status", **host.settings).returncode == 0


def test_an_engine_that_is_silent_or_another_one_is_no_dead_server(host: GpuHost) -> None:
    host.box.run(**host.settings)
    before = host.box.record
    other = host.settings | {"DOCKER_HOST": "unix:///run/user/1/docker.sock"}
    for verb in ("status", "start", "stop"):
        done = host.box.run(verb, **other)
        assert (done.returncode, "[E_DOCKER]" in done.stderr) == (4, True)
        assert f"do this: the same with DOCKER_HOST={host.settings['DOCKER_HOST']}" in done.stderr
    host.close()
    done = host.box.run("status", **host.settings)
    assert (done.returncode, "[E_DOCKER]" in done.stderr) == (4, True)
    assert "dead" not in done.stdout
    assert host.box.record == before


def test_a_server_whose_run_folder_is_gone_can_be_stopped(host: GpuHost) -> None:
    host.box.run(**host.settings)
    shutil.rmtree(host.box.record["folder"])
    done = host.box.stop(**host.settings)
    assert done.returncode == 0, done.stderr
    assert host.box.run("status", **host.settings).returncode == 3
    assert len(host.box.archives()) == 1


def test_a_host_that_knows_container_devices_only_serves_too(host: GpuHost) -> None:
    host.plan(no_gpus='could not select device driver "" with capabilities: [[gpu]]', cdi=True)
    done = host.box.run(**host.settings)
    assert done.returncode == 0, done.stderr
    told = host.asked("POST /containers/create")[-1]["HostConfig"]["DeviceRequests"]
    assert [(one["Driver"], one["DeviceIDs"]) for one in told] == [("cdi", ["nvidia.com/gpu=0", "nvidia.com/gpu=1"])]


@pytest.mark.parametrize("words", ["0000:c1:00.0,0000:01:00.0", f"{UUIDS[1][:14]},{UUIDS[0]}"])
def test_a_bus_id_or_a_beginning_reaches_the_container_as_the_uuid(host: GpuHost, words: str) -> None:
    done = host.box.run(**host.settings, GPUS=words)
    assert done.returncode == 0, done.stderr
    (told,) = host.asked("POST /containers/create")
    assert told["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == [UUIDS[1], UUIDS[0]]


def test_a_comment_in_a_script_builds_no_image_anew(host: GpuHost) -> None:
    for name in ("scripts/prepare.sh", "scripts/recipe/steps/image.py"):
        place = host.box.root / name
        place.write_text(place.read_text() + "\n# a remark\n")
    done = host.box.run("prepare", **host.settings)
    assert done.returncode == 0, done.stderr
    assert "[I_READY] Image" in done.stdout
    assert host.asked("POST /build") == []


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub({"config.json": b"{}", "model.safetensors": b"weights" * 1000})
    yield made
    made.close()


def test_a_start_fetches_both_repositories_from_the_mirror_named_and_a_second_asks_nobody(host: GpuHost, hub: Hub) -> None:
    for folder in host.checkpoint.parent.iterdir():
        shutil.rmtree(folder)
    settings = host.settings | {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": "hf_canary_of_the_token",
        "MODEL_FREE_GIB": "0",
        "DFLASH2_FREE_GIB": "0",
    }
    done = host.box.run(**settings)
    assert done.returncode == 0, done.stderr
    assert "LIVE!" in done.stdout
    assert (host.checkpoint / "model.safetensors").read_bytes() == hub.contents["model.safetensors"]
    assert downloads.is_complete(host.checkpoint, CHECKPOINT.revision)
    assert (hub.tokens, hub.leaks) == ({"Bearer hf_canary_of_the_token"}, set())
    hub.sent.clear()
    assert host.box.run("restart", **settings).returncode == 0
    assert hub.sent == []
    host.box.stop(**settings)
    for archive in host.box.archives():
        with tarfile.open(archive) as tar:
            assert all(b"hf_canary" not in file.read() for file in map(tar.extractfile, tar.getmembers()) if file is not None)


def test_a_download_that_never_comes_right_ends_the_start_and_leaves_the_running_server(host: GpuHost, hub: Hub) -> None:
    assert host.box.run(**host.settings).returncode == 0
    before = host.box.record
    (host.checkpoint / downloads.MARKER).unlink()
    hub.faults["model.safetensors"] = ["corrupt"] * 99
    done = host.box.run("restart", **host.settings, HF_ENDPOINT=hub.url, MODEL_FREE_GIB="0")
    assert done.returncode == 11
    assert "[E_DOWNLOAD]" in done.stderr
    assert "model.safetensors" in done.stderr
    assert not downloads.is_complete(host.checkpoint, CHECKPOINT.revision)
    assert host.box.record == before
    assert host.box.is_listening()
