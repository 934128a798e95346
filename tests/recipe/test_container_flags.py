"""The container's flags as data: each restriction is there in both forms, and nothing of the never-list ever is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.clone_box import Box
from recipe import config, container, launching
from recipe.record import Launch

NEVER = {
    *("--privileged", "--cap-add", "--device", "--pid", "--uts", "--userns", "--group-add"),
    *("--volumes-from", "--volume", "-v", "--cgroup-parent"),
}


def launch(box: Box, **settings: str) -> Launch:
    given = box.environment | {"RUNTIME": "docker"} | settings
    return launching.container_launch(config.load(box.root, given), "0123456789abcdef", given)


def words(made: Launch) -> list[str]:
    return list(made.argv[: made.argv.index(made.image)])


@pytest.mark.parametrize(
    ("flag", "option", "value"),
    [
        (["--read-only"], "read_only", True),
        (["--cap-drop", "ALL"], "cap_drop", ["ALL"]),
        (["--ipc", "private"], "ipc_mode", "private"),
        (["--restart", "no"], "restart_policy", {"Name": "no"}),
        (["--pids-limit", "4096"], "pids_limit", 4096),
        (["--network", "host"], "network_mode", "host"),
        (["--shm-size", "1g"], "shm_size", "1g"),
        (["--tmpfs", "/tmp:rw,nosuid,nodev,size=1g"], "tmpfs", {"/tmp": "rw,nosuid,nodev,size=1g"}),
    ],
)
def test_a_flag_is_shown_as_it_is_done(box: Box, flag: list[str], option: str, value: Any) -> None:
    made = launch(box)
    shown = words(made)
    assert any(shown[place : place + len(flag)] == flag for place in range(len(shown)))
    assert made.options[option] == value


def test_privileges_and_system_calls_are_denied_together(box: Box) -> None:
    profile = f"seccomp={box.root}/docker/seccomp.json"
    assert launch(box).options["security_opt"] == ["no-new-privileges", profile]
    assert {"no-new-privileges", profile} <= set(words(launch(box)))


@pytest.mark.parametrize(("caller", "user"), [((0, 0), "65534:65534"), ((1000, 100), "1000:100"), ((1000, 0), "1000:65534")])
def test_whoever_calls_the_server_is_not_root(box: Box, monkeypatch: pytest.MonkeyPatch, caller: tuple[int, int], user: str) -> None:
    monkeypatch.setattr("os.getuid", lambda: caller[0])
    monkeypatch.setattr("os.getgid", lambda: caller[1])
    assert launch(box).options["user"] == user


def test_root_of_a_rootless_engine_is_the_caller_outside(box: Box) -> None:
    assert launch(box, DOCKER_HOST="unix:///run/user/1000/docker.sock").options["user"] == "0:0"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"NETWORK": "bridge"},
        {"API_KEY_FILE": "/somewhere/key"},
        {"SPILL_GIB": "9"},
        {"PROFILE": "two-gpu"},
        {"PROFILE": "two-gpu", "DRAFTER": "mtp", "HOST": "::1", "NETWORK": "bridge"},
    ],
)
def test_nothing_of_the_never_list_is_given(box: Box, settings: dict[str, str]) -> None:
    made = launch(box, **settings)
    assert NEVER & set(words(made)) == set()
    assert not any("docker.sock" in word or "unconfined" in word or word.endswith(("=host", "pid=host")) for word in words(made))
    mounts = {mount["Target"]: mount for mount in made.options["mounts"]}
    assert {"/model", "/logs"} <= set(mounts) <= {"/model", "/drafter", "/logs", "/key", "/kernels", "/spill"}
    assert {target for target, mount in mounts.items() if not mount["ReadOnly"]} <= {"/logs", "/kernels", "/spill"}
    assert all(Path(mount["Source"]) != Path("/") for mount in mounts.values())
    assert ("/kernels" in mounts) == (settings.get("PROFILE") == "two-gpu")
    assert ("/spill" in mounts) == ("SPILL_GIB" in settings)


def test_every_mount_is_shown_with_its_rights(box: Box) -> None:
    made = launch(box, API_KEY_FILE="/somewhere/key")
    shown = [word for before, word in zip(words(made), words(made)[1:], strict=False) if before == "--mount"]
    assert sorted(shown) == sorted(
        f"type=bind,source={one['Source']},target={one['Target']}{',readonly' if one['ReadOnly'] else ''}" for one in made.options["mounts"]
    )
    assert "/somewhere/key" not in " ".join(made.argv)


def test_a_network_of_its_own_gets_one_port_at_the_address_asked_for(box: Box) -> None:
    made = launch(box, NETWORK="bridge", HOST="::1", PORT="8999")
    assert made.options["ports"] == {"8999/tcp": ("::1", 8999)}
    assert "[::1]:8999:8999" in words(made)
    assert made.command[made.command.index("--host") + 1] == "0.0.0.0"


def test_the_folder_of_a_run_is_filled_in_wherever_it_stands() -> None:
    given = {"labels": {"recipe.run": "{run}"}, "mounts": [{"Source": "{run}", "Target": "/logs"}]}
    made = container.in_run(given, "{run}", '/a "quoted" place')
    assert made == {"labels": {"recipe.run": '/a "quoted" place'}, "mounts": [{"Source": '/a "quoted" place', "Target": "/logs"}]}


def test_states_of_prompts_go_to_a_folder_only_if_they_may_take_space(box: Box) -> None:
    off, on = launch(box), launch(box, SPILL_GIB="20", SPILL_DIR="/large/spill")
    assert "--spill-dir" not in off.command
    assert on.command[on.command.index("--spill-dir") + 1] == "/spill"
    assert on.command[on.command.index("--spill-gib") + 1] == "20"
    (mount,) = [mount for mount in on.options["mounts"] if mount["Target"] == "/spill"]
    assert (mount["Source"], mount["ReadOnly"]) == ("/large/spill", False)
    given = box.environment | {"SPILL_GIB": "1", "DATA_DIR": "/data"}
    process = launching.process_launch(config.load(box.root, given), "0123456789abcdef", Path("/python"), given)
    assert process.argv[process.argv.index("--spill-dir") + 1] == "/data/spill"
    changed = config.load(box.root, box.environment | {"SPILL_GIB": "1", "DATA_DIR": "/data", "SPILL_DIR": "/other"})
    assert launching.differences(process, changed) == ["SPILL_DIR: the server runs with /data/spill, environment says /other"]
