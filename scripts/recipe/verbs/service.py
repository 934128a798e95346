"""install-service and watch: units for systemd that serve after a boot, and a watchdog that serves again what has died. Starts no unit."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from failure import Failure
from recipe import files, lock, server
from recipe import record as records
from recipe.adapters import kernel, process
from recipe.config import ENVIRONMENT
from recipe.job import Job
from recipe.settings import SETTINGS
from recipe.verbs.start import revive

NAME = "glm-5.3-flash"
EVERY_S, UNWELL, TRIES = 30, 3, 3
VERIFY_S = 30
PAUSED = "watch-paused"
# Of the environment, besides settings: where tools, homes and Docker are.
KEPT = ("HOME", "PATH", "PYTHON", "DOCKER_HOST", "XDG_CACHE_HOME")

SERVER = """[Unit]
Description=GLM-5.3-Flash of {root}
After=network-online.target docker.service
Wants=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
{environment}
ExecStart={start}
ExecStop={stop}
TimeoutStartSec=infinity
TimeoutStopSec={stop_s}

[Install]
WantedBy={target}
"""
# A server that the watchdog started goes on when the watchdog's own process ends.
WATCHDOG = """[Unit]
Description=Serve GLM-5.3-Flash of {root} again if it died

[Service]
Type=oneshot
KillMode=process
{environment}
ExecStart={start} watch
TimeoutStartSec=infinity
"""
TIMER = """[Unit]
Description=Look after GLM-5.3-Flash of {root}

[Timer]
OnActiveSec={every_s}
OnUnitInactiveSec={every_s}

[Install]
WantedBy=timers.target
"""


def install_service(job: Job, words: Sequence[str]) -> int:
    """`install-service [FOLDER]`: write three units and let systemd's own check read them. Raises Failure E_SERVICE."""
    if len(words) > 1:
        raise Failure("E_CONFIG", found=f"install-service {' '.join(words)}", needed="install-service, or with one folder for the units")
    is_root = os.geteuid() == 0
    place = Path(words[0]).absolute() if words else _usual_place(job)
    told = units(job, "multi-user.target" if is_root else "default.target")
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in told.items():
            files.write_atomically(place / name, text.encode(), mode=0o644)
    except OSError as error:
        raise Failure("E_SERVICE", found=f"{place}: {error.strerror}", needed="a folder for units that can be written") from error
    checked = process.ask(
        ["systemd-analyze", *(() if is_root else ("--user",)), "verify", "--man=no", *(str(place / name) for name in told)],
        job.tool_environment,
        timeout_s=VERIFY_S,
    )
    complaints = [line for line in checked.output.splitlines() if NAME in line]
    if checked.status != 127 and complaints:
        raise Failure("E_SERVICE", found="; ".join(complaints), needed="units that systemd takes")
    job.ui.inform("I_SERVICE", f"{', '.join(told)} in {place}" + (" (not checked: no systemd-analyze)" if checked.status == 127 else ""))
    control = "systemctl" if is_root else "systemctl --user"
    job.ui.line(f"  {control} daemon-reload && {control} enable --now {NAME}.service {NAME}-watch.timer")
    if not is_root:
        job.ui.line("  loginctl enable-linger      serves without a login too")
    job.ui.line("  ./start.sh watch pause       leaves a dead server alone until ./start.sh watch resume")
    return 0


def _usual_place(job: Job) -> Path:
    return Path("/etc/systemd/system") if os.geteuid() == 0 else Path(kernel.home(job.environment), ".config/systemd/user")


def installed(job: Job) -> list[Path]:
    """Units of this clone in their usual place, and the links that turn them on."""
    place, told = _usual_place(job), units(job, "")
    name, text = next(iter(told.items()))
    try:
        is_own = text.splitlines()[1] in (place / name).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return sorted(path for name in told for path in place.rglob(name)) if is_own else []


def units(job: Job, target: str) -> Mapping[str, str]:
    """Name to text. Settings of this environment stand in them, secrets do not: those belong into .env."""
    names = [name for name, chosen in job.config.chosen.items() if chosen.origin.startswith(ENVIRONMENT) and not SETTINGS[name].is_secret]
    kept = {name: job.environment[name] for name in KEPT if name in job.environment} | {name: job.config.text(name) for name in names}
    lines = [f"Environment={_quoted(f'{name}={text}')}" for name, text in kept.items()]
    root = str(job.config.root)
    facts = {
        "root": root.replace("%", "%%"),
        "environment": "\n".join(lines),
        # Words of a command may hold what the name of a program may not.
        "start": "/usr/bin/env bash " + _quoted(f"{root}/start.sh").replace("$", "$$"),
        "stop": "/usr/bin/env bash " + _quoted(f"{root}/stop.sh").replace("$", "$$"),
        "stop_s": job.config.number("STOP_TIMEOUT") + 60,
        "target": target,
        "every_s": EVERY_S,
    }
    texts = {f"{NAME}.service": SERVER, f"{NAME}-watch.service": WATCHDOG, f"{NAME}-watch.timer": TIMER}
    return {name: text.format(**facts) for name, text in texts.items()}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def watch(job: Job, words: Sequence[str]) -> int:
    """One look: a server that is unwell three times in a row is started again from its record. `pause` and `resume` say whether to look."""
    state_dir = job.places.state_dir
    marker = state_dir / PAUSED
    if list(words) not in ([], ["pause"], ["resume"]):
        raise Failure("E_CONFIG", found=f"watch {' '.join(words)}", needed="watch, watch pause or watch resume")
    if words == ["pause"]:
        state_dir.mkdir(parents=True, exist_ok=True, mode=files.PRIVATE_FOLDER)
        files.write_json(marker, {})
    elif words:
        marker.unlink(missing_ok=True)
    if words or marker.exists():
        job.ui.inform("I_WATCH", "paused; ./start.sh watch resume goes on" if marker.exists() else "looking again")
        return 0
    try:
        with lock.hold(state_dir, job.verb):
            launch = _look(job)
            return revive(job, launch) if launch is not None else 0
    except Failure as failure:
        if failure.code != "E_LOCK":
            raise
        job.ui.inform("I_WATCH", failure.found)
        return 0


def _look(job: Job) -> records.Launch | None:
    """What has to be started again now."""
    place, ui = job.places.state_dir / records.WATCH_FILE, job.ui
    counts = {"unwell": 0, "tries": 0} | (files.read_json(place) or {})
    record = server.find(job.places)
    if record is None:
        earlier = records.lived(job.places.state_dir)[:1]
        if not counts["tries"] or not earlier:
            ui.inform("I_WATCH", "no server to look after")
            return None
        if counts["tries"] >= TRIES:
            ui.inform("W_WATCH", f"it did not come back in {TRIES} tries: given up")
            return None
        files.write_json(place, counts | {"tries": counts["tries"] + 1})
        return earlier[0]
    health = server.health(record) if server.is_alive(record) else server.Health("failed", "the server is gone")
    if health.state in ("ready", "loading"):
        if counts["unwell"] or (counts["tries"] and health.state == "ready"):
            place.unlink(missing_ok=True)
        ui.inform("I_WATCH", f"{record.launch.url} is {health.state}")
        return None
    counts["unwell"] += 1
    ui.inform("W_WATCH", f"{record.launch.url}: {health.cause} ({counts['unwell']} of {UNWELL})")
    if counts["unwell"] < UNWELL:
        files.write_json(place, counts)
        return None
    files.write_json(place, {"unwell": 0, "tries": counts["tries"] + 1})
    return record.launch
