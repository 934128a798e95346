"""Reads the Linux kernel's tables: processes by identity, owners of ports, filesystems. Starts nothing."""

import contextlib
import os
import pwd
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"


@dataclass(frozen=True)
class Identity:
    """One process, never mistaken for a later one with the same number: start in clock ticks since boot, and the boot itself."""

    pid: int
    start_ticks: int
    boot_id: str


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start in ticks, or None where the process is gone."""
    try:
        # The name in parentheses may hold blanks and parentheses; the fields after the last one are plain.
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (fields[0], int(fields[19])) if len(fields) > 19 else None


def identify(pid: int) -> Identity | None:
    """Identity of a living process; None where it is gone or a zombie."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else Identity(pid, stat[1], boot_id())


def is_alive(identity: Identity) -> bool:
    return identify(identity.pid) == identity


def marked(name: str, value: str) -> list[Identity]:
    """Living processes whose environment, as they were started with it, holds NAME=value; processes of other users are not seen."""
    wanted = f"{name}={value}".encode()
    found = []
    for pid in _pids():
        try:
            environment = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            identity = identify(pid)
            if identity is not None:
                found.append(identity)
    return found


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal exactly this process; False where it is gone. Raises PermissionError."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        # Checked after the handle is held: the number cannot pass to another process behind it.
        if not is_alive(identity):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        return True
    finally:
        os.close(handle)


def reap(pid: int) -> int | None:
    """Exit status of a child of this program that has ended (negative: the signal); None where it runs, or is no child of ours."""
    with contextlib.suppress(ChildProcessError):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
    return None


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir(PROC) if entry.isdigit())


def command_name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return "a process that ended"


def described(pid: int) -> str:
    """Name, number and user of a process."""
    try:
        owner = user((PROC / str(pid)).stat().st_uid)
    except OSError:
        owner = "a user not known here"
    return f"{command_name(pid)} (process {pid} of {owner})"


def home(environment: Mapping[str, str]) -> str:
    """HOME, or where that is no place the home folder that the list of users gives this one."""
    if environment.get("HOME", "").startswith("/"):
        return environment["HOME"]
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/nonexistent"


def closed(path: Path) -> str:
    """Why this user can neither write to a folder nor make it; empty where that can be done."""
    place = path
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        return f"{place} is no folder"
    return "" if os.access(place, os.W_OK | os.X_OK) else f"{place} may not be written to by {user()}"


def user(number: int | None = None) -> str:
    """Name of a user, this one if no other is asked for."""
    number = os.geteuid() if number is None else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def can_bind(host: str, port: int) -> bool:
    """Whether a server could listen there now. Raises OSError (gaierror) where the host name or address is not of this machine."""
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                if isinstance(error, PermissionError) or error.errno == 98:
                    return False
                raise
    return True


def own_address() -> str:
    """An address by which other machines would reach this one; empty where there is none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found = str(probe.getsockname()[0])
        except OSError:
            return ""
    return "" if found.startswith("127.") else found


def port_owners(port: int) -> list[int]:
    """Numbers of the processes that listen on a TCP port, as far as this user may see them."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for row in (PROC / table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return []
    return sorted(pid for pid in _pids() if inodes & _links(PROC / str(pid) / "fd"))


def _links(folder: Path) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(os.readlink(folder / entry))
    return found


@dataclass(frozen=True)
class Filesystem:
    """`device` tells filesystems apart; `free_bytes` and `free_files` are what this user may still write and make."""

    device: int
    free_bytes: int
    free_files: int = sys.maxsize


def filesystem(path: Path) -> Filesystem:
    """Filesystem that holds `path`, or would hold it: its nearest existing parent counts."""
    place = path
    while not os.path.exists(place):
        place = place.parent
    status = os.statvfs(place)
    # One that counts no files makes as many as there is space for.
    return Filesystem(place.stat().st_dev, status.f_bavail * status.f_frsize, status.f_favail if status.f_files else sys.maxsize)
