"""The container as data: every flag once, as the docker command takes it and as the SDK does. Runs nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RUN_LABEL = "recipe.run"
# Whoever calls as root gets a server that is nobody: no file of the host belongs to it.
NOBODY = 65534
LOG_SIZE, LOG_FILES = "16m", "2"


@dataclass(frozen=True)
class Flag:
    """One gift or restriction. Values of flags with the same option add up."""

    words: tuple[str, ...]
    option: str
    value: Any


def common(name: str, run: str, user: str, seccomp: str) -> list[Flag]:
    """What every container of the engine is called, and what it is denied."""
    return [
        Flag(("--name", name), "name", name),
        Flag(("--label", f"{RUN_LABEL}={run}"), "labels", {RUN_LABEL: run}),
        Flag(("--restart", "no"), "restart_policy", {"Name": "no"}),
        Flag(("--user", user), "user", user),
        Flag(("--read-only",), "read_only", True),
        Flag(("--cap-drop", "ALL"), "cap_drop", ["ALL"]),
        Flag(("--security-opt", "no-new-privileges"), "security_opt", ["no-new-privileges"]),
        Flag(("--security-opt", f"seccomp={seccomp}"), "security_opt", [f"seccomp={seccomp}"]),
        Flag(("--ipc", "private"), "ipc_mode", "private"),
        Flag(("--pids-limit", "4096"), "pids_limit", 4096),
        Flag(("--tmpfs", "/tmp:rw,nosuid,nodev,size=1g"), "tmpfs", {"/tmp": "rw,nosuid,nodev,size=1g"}),
        Flag(
            ("--log-driver", "json-file", "--log-opt", f"max-size={LOG_SIZE}", "--log-opt", f"max-file={LOG_FILES}"),
            "log_config",
            {"type": "json-file", "config": {"max-size": LOG_SIZE, "max-file": LOG_FILES}},
        ),
    ]


def network(*, host: str, port: int, is_bridge: bool) -> Flag:
    """The host's network, where the server sees who asks; or a network of its own with one port of the host led into it."""
    if not is_bridge:
        return Flag(("--network", "host"), "network_mode", "host")
    place = f"[{host}]" if ":" in host else host
    return Flag(("--publish", f"{place}:{port}:{port}"), "ports", {f"{port}/tcp": (host, port)})


def memory(gib: int) -> Flag:
    """Shared memory, in GiB."""
    return Flag(("--shm-size", f"{gib}g"), "shm_size", f"{gib}g")


def gpus(ids: Sequence[str]) -> list[Flag]:
    """The GPUs, and pages that may be locked for transfers to them; nothing for none."""
    request = {"driver": "", "device_ids": list(ids), "capabilities": [["gpu"]]}
    given = [
        Flag(("--gpus", f'"device={",".join(ids)}"'), "device_requests", [request]),
        Flag(("--ulimit", "memlock=-1"), "ulimits", [{"name": "memlock", "soft": -1, "hard": -1}]),
    ]
    return given if ids else []


def mount(source: str, target: str, *, is_writable: bool = False) -> Flag:
    """A file or folder of the host that must exist: nothing is made where it is missing."""
    words = f"type=bind,source={source},target={target}" + ("" if is_writable else ",readonly")
    value = {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not is_writable}
    return Flag(("--mount", words), "mounts", [value])


def variable(text: str, value: str) -> Flag:
    return Flag(("--env", f"{text}={value}"), "environment", {text: value})


def argv(flags: Sequence[Flag], image: str, command: Sequence[str]) -> tuple[str, ...]:
    """The start as a shell takes it."""
    return ("docker", "run", "--detach", *(word for flag in flags for word in flag.words), image, *command)


def options(flags: Sequence[Flag]) -> dict[str, Any]:
    """The same flags for the SDK."""
    made: dict[str, Any] = {}
    for flag in flags:
        if isinstance(flag.value, list):
            made[flag.option] = [*made.get(flag.option, []), *flag.value]
        elif isinstance(flag.value, dict):
            made[flag.option] = {**made.get(flag.option, {}), **flag.value}
        else:
            made[flag.option] = flag.value
    return made


def in_run(given: dict[str, Any], mark: str, folder: str) -> dict[str, Any]:
    """The options of one run: `mark` in any text becomes its folder."""
    return json.loads(json.dumps(given).replace(mark, json.dumps(folder)[1:-1]))
