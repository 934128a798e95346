"""A command of the engine in a container that goes away: its words and status are known, its limit holds, it reaches no network."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.docker_installation import Installation
from recipe import config, launching, runlog
from recipe.adapters import containers
from recipe.record import Launch
from recipe.runtimes.container import ContainerRuntime

PROBE = ["peers", "--device", "cpu", "--timeout", "30"]


@pytest.fixture
def work(live: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """The probe as a start on GPUs carries it out, on the CPU."""
    monkeypatch.setenv("DOCKER_HOST", live.daemon.environment["DOCKER_HOST"])
    containers._client.cache_clear()
    settings = config.load(live.root, live.environment)
    yield launching.work_launch(settings, live.build, None, PROBE, live.environment)
    containers._client.cache_clear()


@pytest.fixture
def folder(live: Installation) -> Path:
    return runlog.create(live.home / "work-logs")


def containers_of(live: Installation) -> list[str]:
    return live.daemon.docker("ps", "--all", "--format", "{{.Names}}").split()


def test_it_proves_that_bytes_pass_and_is_gone(live: Installation, work: Launch, folder: Path) -> None:
    log = folder / "peers.log"
    assert ContainerRuntime().work(work, folder, log, 120, lambda: None) == 0
    told = json.loads(log.read_text().splitlines()[-1].partition(" ")[2])
    assert told["cause"] == ""
    assert set(told["gib_s"]) == {"gather", "all-reduce"}
    assert containers_of(live) == [live.name]


def test_what_takes_too_long_is_ended_and_is_gone(live: Installation, work: Launch, folder: Path) -> None:
    assert ContainerRuntime().work(work, folder, folder / "peers.log", 0.1, lambda: None) is None
    assert containers_of(live) == [live.name]


def test_one_that_a_killed_start_left_behind_gives_way(live: Installation, work: Launch, folder: Path) -> None:
    runtime = ContainerRuntime()
    runtime.start(work, folder)
    assert f"{live.name}-work" in containers_of(live)
    assert runtime.work(work, folder, folder / "peers.log", 120, lambda: None) == 0
    assert containers_of(live) == [live.name]


def test_it_is_given_nothing_on_the_never_list_and_no_network(live: Installation, work: Launch, folder: Path) -> None:
    runtime = ContainerRuntime()
    runtime.start(work, folder)
    told = json.loads(live.daemon.docker("inspect", f"{live.name}-work"))[0]["HostConfig"]
    live.daemon.docker("rm", "--force", f"{live.name}-work")
    assert (told["NetworkMode"], told["IpcMode"], told["ReadonlyRootfs"], told["CapDrop"]) == ("none", "private", True, ["ALL"])
    never = ("CapAdd", "Devices", "VolumesFrom", "Binds", "PidMode", "UTSMode", "UsernsMode", "GroupAdd", "PortBindings")
    assert {name: told[name] for name in (*never, "Privileged", "PublishAllPorts") if told.get(name)} == {}
    assert any(word.startswith("seccomp=") for word in told["SecurityOpt"])
