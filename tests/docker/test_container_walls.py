"""What the served container may and may not do, asked from inside it, and what the daemon says of it."""

import json
import os
from typing import Any

import pytest

from fixtures.docker_installation import Installation

# Facts of the container as its own processes see them; `refused` names the error of each thing that is tried.
LOOK = """
import ctypes, errno, json, os, re, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return "done" if libc.syscall(number, *arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
status = dict(line.split(":\\t", 1) for line in open("/proc/1/status").read().splitlines() if ":\\t" in line)
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print(json.dumps({
    "status": {name: status[name].split() for name in ("Uid", "Gid", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")},
    "mounts": {one[4]: one[5].split(",") + one[-1].split(",") for one in mounts},
    "ipc": os.readlink("/proc/1/ns/ipc"), "net": os.readlink("/proc/1/ns/net"), "pid": os.readlink("/proc/1/ns/pid"),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "tmp": os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize,
    "pids": [open(one).read().strip() for one in ("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max") if os.path.exists(one)],
    "devices": sorted(os.listdir("/dev")),
    "environment": dict(os.environ),
    "refused": {
        "write /": attempt(lambda: open("/file", "w")),
        "write /opt/engine": attempt(lambda: open("/opt/engine/file", "w")),
        "write /model": attempt(lambda: open("/model/file", "w")),
        "write /drafter": attempt(lambda: open("/drafter/file", "w")),
        "raw socket": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
        "port below 1024": attempt(lambda: socket.create_server(("127.0.0.1", 81))),
        "chroot": attempt(lambda: os.chroot("/tmp")),
        "ptrace": call(101, 0, 0, 0, 0), "mount": call(165, b"a", b"/tmp", b"tmpfs", 0, 0), "unshare": call(272, 0x10000000),
        "clone a namespace": call(56, 0x10000000 | 17, 0, 0, 0, 0), "clone3": call(435, 0, 0), "bpf": call(321, 0, 0, 0),
        "keyctl": call(250, 0, 0, 0, 0, 0), "add_key": call(248, b"user", b"a", b"b", 1, -3), "io_uring_setup": call(425, 1, 0),
        "userfaultfd": call(323, 0), "perf_event_open": call(298, 0, 0, 0, 0, 0), "process_vm_readv": call(310, 1, 0, 0, 0, 0, 0),
        "personality": call(135, 0xffffffff), "name_to_handle_at": call(303, -100, b"/", 0, 0, 0), "setns": call(308, 0, 0),
    },
    "allowed": {"/tmp": attempt(lambda: open("/tmp/file", "w")), "/logs": attempt(lambda: open("/logs/file", "w"))},
}))
"""
DENIED = (
    *("ptrace", "process_vm_readv", "perf_event_open", "bpf", "userfaultfd", "io_uring_setup", "personality"),
    *("mount", "unshare", "setns", "keyctl", "add_key", "name_to_handle_at"),
)
MIB = 1 << 20


@pytest.fixture(scope="module")
def seen(installation: Installation) -> dict[str, Any]:
    installation.settle()
    return json.loads(installation.inside(LOOK))


def test_it_is_nobody_and_never_root(seen: dict[str, Any]) -> None:
    assert seen["status"]["Uid"] == seen["status"]["Gid"] == ["65534"] * 4


@pytest.mark.parametrize("name", ["CapEff", "CapPrm", "CapBnd"])
def test_it_has_no_capability_and_can_get_none(seen: dict[str, Any], name: str) -> None:
    assert int(seen["status"][name][0], 16) == 0


def test_no_program_it_starts_gains_privileges(seen: dict[str, Any]) -> None:
    assert seen["status"]["NoNewPrivs"] == ["1"]


def test_system_calls_are_filtered(seen: dict[str, Any]) -> None:
    assert seen["status"]["Seccomp"] == ["2"]


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("write /", "EROFS"),
        ("write /opt/engine", "EROFS"),
        ("write /model", "EROFS"),
        ("write /drafter", "EROFS"),
        ("raw socket", "EPERM"),
        ("port below 1024", "EACCES"),
        ("chroot", "EPERM"),
        ("clone3", "ENOSYS"),
        ("clone a namespace", "EPERM"),
        *((call, "EPERM") for call in DENIED),
    ],
)
def test_it_is_refused(seen: dict[str, Any], what: str, error: str) -> None:
    assert seen["refused"][what] == error


def test_it_writes_only_its_own_tmp_and_the_run_folder(seen: dict[str, Any]) -> None:
    assert seen["allowed"] == {"/tmp": "done", "/logs": "done"}
    # The kernel's own views and what every container has.
    ours = {place: options for place, options in seen["mounts"].items() if not place.startswith(("/proc", "/sys", "/dev", "/etc/"))}
    assert set(ours) == {"/", "/tmp", "/model", "/drafter", "/logs", "/key"}
    assert {place for place, options in ours.items() if "rw" in options[:1]} == {"/tmp", "/logs"}
    assert {"nosuid", "nodev"} <= set(ours["/tmp"])
    assert seen["tmp"] == 1024 * MIB


def test_its_memory_between_processes_is_its_own_and_bounded(seen: dict[str, Any]) -> None:
    assert seen["ipc"] != os.readlink("/proc/self/ns/ipc")
    assert seen["pid"] != os.readlink("/proc/self/ns/pid")
    assert seen["shm"] == 1024 * MIB


def test_its_processes_are_counted(seen: dict[str, Any]) -> None:
    assert seen["pids"] == ["4096"]


def test_it_has_no_device_but_what_every_container_has(seen: dict[str, Any]) -> None:
    plain = {"core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}
    assert set(seen["devices"]) - plain == set()


def test_its_environment_holds_nothing_of_the_host(seen: dict[str, Any]) -> None:
    assert set(seen["environment"]) - {"LC_CTYPE"} == {"PATH", "HOSTNAME", "HOME", "HF_HUB_OFFLINE", "PYTHONNOUSERSITE"}


def test_the_daemon_was_asked_for_nothing_on_the_never_list(live: Installation) -> None:
    told = live.inspect()
    given = told["HostConfig"]
    never = ("CapAdd", "Devices", "DeviceRequests", "VolumesFrom", "Binds", "PidMode", "UTSMode", "UsernsMode", "Links", "GroupAdd")
    assert {name: given[name] for name in (*never, "Privileged", "PublishAllPorts") if given.get(name)} == {}
    assert given["IpcMode"] == "private"
    assert not any("unconfined" in word for word in given["SecurityOpt"])
    assert not any(mount["Source"].endswith(".sock") or mount["Source"] == "/" for mount in told["Mounts"])


def test_it_does_not_come_back_by_itself_and_its_log_is_bounded(live: Installation) -> None:
    given = live.inspect()["HostConfig"]
    assert given["RestartPolicy"]["Name"] == "no"
    assert given["LogConfig"] == {"Type": "json-file", "Config": {"max-file": "2", "max-size": "16m"}}


def test_the_media_worker_can_still_lock_itself_in(live: Installation) -> None:
    told = live.inside("import os; from pixels.sandbox import enter; os.write(1, enter(1 << 32, 60).encode()); os._exit(0)")
    assert {"seccomp", "rlimits"} <= set(told.split(", "))


def test_two_ranks_can_still_prove_that_bytes_pass_between_them(live: Installation) -> None:
    told = live.daemon.docker("exec", live.name, "/opt/engine/bin/python", "-m", "peers", "--device", "cpu")
    assert json.loads(told)["cause"] == ""
