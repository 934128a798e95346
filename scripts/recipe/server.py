"""The life of one server: found, started, ended, recovered after a crash. Knows records and runtimes, no steps and no settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from recipe import files, runlog, runtimes
from recipe import record as records
from recipe.record import Launch, Record
from recipe.runtimes import RUNNING, Status
from verify import http

HEALTH_S = 2.0
# A server that says one of these of itself will not serve again.
GONE = ("dead", "stalled", "draining")


@dataclass(frozen=True)
class Places:
    """Where a server keeps its record and its logs, and how many archives stay; `hidden` values never get into one."""

    state_dir: Path
    log_dir: Path
    log_keep: int
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Health:
    """What the server says of itself: `state` is ready, loading, failed or silent; `cause` explains all but ready."""

    state: str
    cause: str = ""


def start(launch: Launch, folder: Path, places: Places) -> Record:
    """Start a server and record it. Raises Failure E_START.

    A record is written before the start too, so that a crash in between leaves a trace.
    """
    records.save(places.state_dir, Record(launch, folder))
    files.write_json(folder / runlog.SETTINGS_FILE, launch.settings)
    started = Record(launch, folder, runtimes.of(launch).start(launch, folder))
    records.save(places.state_dir, started)
    return started


def find(places: Places) -> Record | None:
    return records.load(places.state_dir)


def is_alive(record: Record) -> bool:
    return status(record) == RUNNING


def status(record: Record) -> Status:
    """RUNNING, or how it ended: its exit status, minus the number of a signal, None where nobody knows."""
    return runtimes.of(record.launch).status(record)


def end(record: Record, places: Places, grace_s: float) -> Path | None:
    """End what is left of a server, pack its logs, forget it; returns the archive.

    Raises Failure E_STOP or E_LOG; the record then stays.
    """
    runtimes.of(record.launch).end(record, grace_s)
    packed = runlog.archive(record.folder, places.log_keep, places.hidden)
    records.forget(places.state_dir)
    return packed


def health(record: Record) -> Health:
    """Ask the server, with its own address and key. Never raises for what it answers."""
    launch = record.launch
    try:
        key = launch.key()
    except Failure:
        key = ""
    ready = http.call(launch.address, launch.port, "/health/ready", key=key, timeout_s=HEALTH_S)
    if ready.status == 200:
        return Health("ready")
    if ready.status == 0:
        return Health("silent", ready.body)
    return judge(http.call(launch.address, launch.port, "/health", key=key, timeout_s=HEALTH_S).data())


def told(record: Record) -> dict[str, object]:
    """What the server says of itself at /health; empty where it says nothing. Raises Failure E_KEY."""
    launch = record.launch
    return http.call(launch.address, launch.port, "/health", key=launch.key(), timeout_s=HEALTH_S).data()


def judge(told: Mapping[str, object]) -> Health:
    """Read the body of /health of a server that is not ready."""
    state = str(told.get("status", "unknown"))
    return Health("failed" if state in GONE else "loading", str(told.get("cause") or state))
