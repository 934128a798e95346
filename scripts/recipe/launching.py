"""Makes the launch of a server from settings: its argument list, environment and container options, all as data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from recipe.config import Config
from recipe.record import RUN, Launch
from recipe.runtimes.container import RUN_LABEL
from recipe.settings import SETTINGS

# What a server process gets from the caller's environment; everything else stays outside.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
INSIDE_MODEL, INSIDE_DRAFTER, INSIDE_LOGS, INSIDE_KEY = "/model", "/drafter", "/logs", "/key"
# Settings whose change a running server would only follow after a restart, besides the engine's own.
FIXED_AT_START = (
    "PROFILE", "RUNTIME", "GPUS", "CONTAINER_NAME", "DRAFTER", "MODEL_DIR", "DFLASH2_DIR", "API_KEY_FILE",
    "ENGINE_REPO", "ENGINE_COMMIT", "BASE_IMAGE", "IMAGE",
)  # fmt: skip


def process_launch(config: Config, build: str, python: Path, environment: Mapping[str, str]) -> Launch:
    """The engine as a process: `python` is the interpreter of its build."""
    places = {"model": config.text("MODEL_DIR"), "drafter": config.text("DFLASH2_DIR"), "logs": RUN, "key": config.text("API_KEY_FILE")}
    argv = (str(python), "-m", "lockstep", *engine_words(config, places, host=config.text("HOST")))
    return _launch(config, build, argv, {**{name: environment[name] for name in PASSED_ON if name in environment}, **OFFLINE})


def container_launch(config: Config, build: str) -> Launch:
    """The engine as a container: nothing writable but the run folder and /tmp, no capability, one published port, private IPC."""
    key = config.text("API_KEY_FILE")
    mounts = [f"{config.text('MODEL_DIR')}:{INSIDE_MODEL}:ro", f"{RUN}:{INSIDE_LOGS}:rw"]
    if config.text("DRAFTER") == "dflash2":
        mounts.append(f"{config.text('DFLASH2_DIR')}:{INSIDE_DRAFTER}:ro")
    if key:
        mounts.append(f"{key}:{INSIDE_KEY}:ro")
    host = config.text("HOST")
    publish = f"{f'[{host}]' if ':' in host else host}:{config.text('PORT')}:{config.text('PORT')}"
    options = [
        *("--detach", "--init", "--restart", "no", "--name", config.text("CONTAINER_NAME"), "--label", f"{RUN_LABEL}={RUN}"),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--tmpfs", "/tmp", "--ipc", "private", "--shm-size", "32g", "--ulimit", "memlock=-1", "--publish", publish),
    ]
    if config.gpus():
        options += ["--gpus", f'"device={",".join(map(str, config.gpus()))}"']
    for mount in mounts:
        options += ["--volume", mount]
    for name, value in OFFLINE.items():
        options += ["--env", f"{name}={value}"]
    places = {"model": INSIDE_MODEL, "drafter": INSIDE_DRAFTER, "logs": INSIDE_LOGS, "key": INSIDE_KEY if key else ""}
    argv = ("docker", "run", *options, config.text("IMAGE"), *engine_words(config, places, host="0.0.0.0"))
    return _launch(config, build, argv, {})


def engine_words(config: Config, places: Mapping[str, str], *, host: str) -> list[str]:
    """`serve` and its options; `places` are paths as the engine sees them."""
    drafter = config.text("DRAFTER")
    words = ["serve", "--model", places["model"], "--drafter", places["drafter"] if drafter == "dflash2" else drafter]
    for name, setting in SETTINGS.items():
        if name == "THINKING":
            words.append("--thinking" if config.is_on(name) else "--no-thinking")
        elif setting.engine_option:
            words += [setting.engine_option, host if name == "HOST" else config.text(name)]
    if places["key"]:
        words += ["--api-key-file", places["key"]]
    return [*words, "--device", "cuda" if config.gpus() else "cpu", "--log-dir", places["logs"]]


def _launch(config: Config, build: str, argv: tuple[str, ...], environment: dict[str, str]) -> Launch:
    return Launch(
        runtime=config.text("RUNTIME"),
        argv=argv,
        environment=environment,
        cwd=str(config.root),
        host=config.text("HOST"),
        port=config.number("PORT"),
        name=config.text("SERVED_NAME"),
        key_file=config.text("API_KEY_FILE"),
        container=config.text("CONTAINER_NAME"),
        build=build,
        settings=config.public(),
    )


def differences(launch: Launch, config: Config) -> list[str]:
    """Settings that the running server was started with otherwise, in words."""
    told = []
    for name, setting in SETTINGS.items():
        if (setting.is_engine or name in FIXED_AT_START) and name in launch.settings and launch.settings[name] != config.text(name):
            now, origin = config.text(name), config.chosen[name].origin
            told.append(f"{name}: the server runs with {launch.settings[name] or 'none'}, {origin} says {now or 'none'}")
    return told
