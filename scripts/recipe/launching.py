"""Makes the launch of a server from settings: its argument list, environment and container options, all as data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from recipe import container
from recipe.adapters import containers
from recipe.config import Config
from recipe.kinds import FLAG
from recipe.record import RUN, Launch
from recipe.settings import SETTINGS

# What a server process gets from the caller's environment; everything else stays outside.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
INSIDE_MODEL, INSIDE_DRAFTER, INSIDE_LOGS, INSIDE_KEY, INSIDE_KERNELS = "/model", "/drafter", "/logs", "/key", "/kernels"
# Settings whose change a running server would only follow after a restart, besides the engine's own.
FIXED_AT_START = (
    "PROFILE", "RUNTIME", "GPUS", "CONTAINER_NAME", "NETWORK", "DRAFTER", "MODEL_DIR", "DFLASH2_DIR", "API_KEY_FILE",
    "ENGINE_REPO", "ENGINE_COMMIT", "BASE_IMAGE", "IMAGE",
)  # fmt: skip


def process_launch(config: Config, build: str, python: Path, environment: Mapping[str, str]) -> Launch:
    """The engine as a process: `python` is the interpreter of its build."""
    places = {"model": config.text("MODEL_DIR"), "drafter": config.text("DFLASH2_DIR"), "key": config.text("API_KEY_FILE")}
    argv = (str(python), "-m", "lockstep", *engine_words(config, places, host=config.text("HOST")))
    return _launch(config, build, argv, {**{name: environment[name] for name in PASSED_ON if name in environment}, **OFFLINE})


def container_launch(config: Config, build: str, environment: Mapping[str, str]) -> Launch:
    """The engine as a container: nothing writable but the run folder, /tmp and the kernel cache, no capability, private IPC."""
    has_key = bool(config.text("API_KEY_FILE"))
    lent_key = str(config.folder("STATE_DIR") / "lent-key") if has_key else ""
    user = "0:0" if containers.is_rootless(environment) else f"{os.getuid() or container.NOBODY}:{os.getgid() or container.NOBODY}"
    is_bridge = config.text("NETWORK") == "bridge"
    flags = [
        *container.common(config.text("CONTAINER_NAME"), RUN, user, str(config.root / "docker/seccomp.json")),
        container.network(host=config.text("HOST"), port=config.number("PORT"), is_bridge=is_bridge),
        container.memory(32 if config.gpus() else 1),
        *container.gpus(config.gpus()),
        container.mount(config.text("MODEL_DIR"), INSIDE_MODEL),
        container.mount(RUN, INSIDE_LOGS, is_writable=True),
        *(container.variable(name, value) for name, value in (OFFLINE | {"HOME": "/tmp"}).items()),
    ]
    if config.text("DRAFTER") == "dflash2":
        flags.append(container.mount(config.text("DFLASH2_DIR"), INSIDE_DRAFTER))
    if has_key:
        flags.append(container.mount(lent_key, INSIDE_KEY))
    if config.gpus():
        flags.append(container.mount(str(config.folder("DATA_DIR") / "kernels" / build), INSIDE_KERNELS, is_writable=True))
        flags += [container.variable(name, f"{INSIDE_KERNELS}/{name}") for name in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")]
    places = {"model": INSIDE_MODEL, "drafter": INSIDE_DRAFTER, "key": INSIDE_KEY if has_key else ""}
    image = f"{config.text('IMAGE')}:{build}"
    command = tuple(engine_words(config, places, host="0.0.0.0" if is_bridge else config.text("HOST")))
    launch = _launch(config, build, container.argv(flags, image, command), {})
    return dataclasses.replace(launch, image=image, command=command, options=container.options(flags), lent_key=lent_key)


def engine_words(config: Config, places: Mapping[str, str], *, host: str) -> list[str]:
    """`serve` and its options; `places` are paths as the engine sees them."""
    drafter = config.text("DRAFTER")
    words = ["serve", "--model", places["model"], "--drafter", places["drafter"] if drafter == "dflash2" else drafter]
    for name, setting in SETTINGS.items():
        if setting.engine_option and setting.kind is FLAG:
            words.append(setting.engine_option if config.is_on(name) else setting.engine_option.replace("--", "--no-"))
        elif setting.engine_option:
            words += [setting.engine_option, host if name == "HOST" else config.text(name)]
    if places["key"]:
        words += ["--api-key-file", places["key"]]
    return [*words, "--device", "cuda" if config.gpus() else "cpu"]


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
