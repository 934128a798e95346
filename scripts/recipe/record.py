"""What is started, and the record of what runs: plain data in STATE_DIR that outlives this program and a crash of it."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from failure import Failure
from recipe import runlog, secrets
from recipe.adapters.kernel import Identity
from recipe.files import read_json, write_json
from recipe.kinds import NO_GPU

FORMAT = 2
RUN = "{run}"
# Beside the settings of a container's launch: the engine that has it.
ENGINE = "DOCKER_HOST"
MARK = "GLM_RECIPE_RUN"
LIVED, LIVES_KEPT = "lived.json", 2
# How the watchdog has fared so far.
WATCH_FILE = "watch.json"


@dataclass(frozen=True)
class Launch:
    """One way to start the server, good for any number of runs: `{run}` in an argument stands for the run folder.

    `environment` is the whole environment of the server; it never holds a secret. `host` is what the server binds.
    A container is started from `image`, `command` and `options`, which `argv` shows as a shell takes them; `lent_key` is the file that
    holds a copy of the key for its user while it runs.
    """

    runtime: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    host: str
    port: int
    name: str
    key_file: str
    container: str
    build: str
    settings: dict[str, str]
    image: str = ""
    command: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    lent_key: str = ""

    def argv_in(self, folder: Path) -> list[str]:
        return [part.replace(RUN, str(folder)) for part in self.argv]

    @property
    def uses_gpus(self) -> bool:
        return self.settings.get("GPUS", NO_GPU) != NO_GPU

    @property
    def address(self) -> str:
        """The host to ask from this machine."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    def key(self) -> str:
        """First key of the key file; empty where nobody needs one. Raises Failure E_KEY."""
        if not self.key_file:
            return ""
        try:
            return secrets.keys(Path(self.key_file))[0]
        except (OSError, IndexError, ValueError) as error:
            needed, remedy = "a readable file with a key in it", "correct it, or remove it and ./start.sh restart: that makes one"
            raise Failure("E_KEY", found=f"{self.key_file}: {error}", needed=needed, remedy=remedy) from error


@dataclass(frozen=True)
class Record:
    """A server as started. `identity` is None between the decision to start and the start itself."""

    launch: Launch
    folder: Path
    identity: Identity | None = None

    @property
    def run(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.log_of(0)

    def log_of(self, rank: int) -> Path:
        """What the API and rank 0 say, or what another rank says."""
        return self.folder / (runlog.RANK_LOG.format(rank=rank) if rank else runlog.SERVER_LOG)


def _file(state_dir: Path) -> Path:
    return state_dir / "server.json"


def save(state_dir: Path, record: Record) -> None:
    write_json(
        _file(state_dir),
        {
            "format": FORMAT,
            "launch": dataclasses.asdict(record.launch),
            "folder": str(record.folder),
            "identity": dataclasses.asdict(record.identity) if record.identity else None,
        },
    )


def load(state_dir: Path) -> Record | None:
    """The last record; None where there is none, or one of another format, which no server of this program can have written."""
    value = read_json(_file(state_dir))
    if value is None or value.get("format") != FORMAT:
        return None
    try:
        return _read(value)
    except (KeyError, TypeError, ValueError):
        return None


def _read(value: dict[str, Any]) -> Record:
    told = value["identity"]
    identity = Identity(int(told["pid"]), int(told["start_ticks"]), str(told["boot_id"])) if told else None
    return Record(_launch(value["launch"]), Path(value["folder"]), identity)


def _launch(told: dict[str, Any]) -> Launch:
    return Launch(**{**told, "argv": tuple(told["argv"]), "command": tuple(told["command"])})


def forget(state_dir: Path) -> None:
    _file(state_dir).unlink(missing_ok=True)


def lived(state_dir: Path) -> list[Launch]:
    """The last launches of different builds that were live, the newest first."""
    told = read_json(state_dir / LIVED) or {}
    try:
        return [_launch(one) for one in told["launches"]] if told.get("format") == FORMAT else []
    except (KeyError, TypeError, ValueError):
        return []


def remember(state_dir: Path, launch: Launch) -> list[Launch]:
    """Put a launch that is live first; returns those that are kept."""
    kept = [launch, *(one for one in lived(state_dir) if one.build != launch.build)][:LIVES_KEPT]
    write_json(state_dir / LIVED, {"format": FORMAT, "launches": [dataclasses.asdict(one) for one in kept]})
    return kept
