"""Makes the launch of a server from settings: its argument list, environment and container options, all as data."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from recipe import container
from recipe.adapters import containers, host
from recipe.checks import gpu
from recipe.config import Config
from recipe.kinds import FLAG
from recipe.record import ENGINE, RUN, Launch
from recipe.settings import SETTINGS

# What a server process gets from the caller's environment; everything else stays outside.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
MODEL, KERNELS, INSIDE_PYTHON = "{model}", "{kernels}", "/opt/engine/bin/python"
INSIDE_MODEL, INSIDE_DRAFTER, INSIDE_LOGS, INSIDE_KEY, INSIDE_KERNELS = "/model", "/drafter", "/logs", "/key", "/kernels"
INSIDE_SPILL = "/spill"
# On GPUs: one host, no fabric, and devices numbered as the driver's tool numbers them.
ON_GPUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}


def visible(config: Config, environment: Mapping[str, str]) -> list[str]:
    """GPUS as drivers and containers take them: a bus id or the beginning of a UUID becomes the UUID, where the device can be asked."""
    facts = host.gpus(environment) if not all(map(str.isdigit, config.gpus())) and not config.is_on("DRY_RUN") else gpu.Gpus(())
    return [found.uuid if not word.isdigit() and (found := facts.named(word)) else word for word in config.gpus()]


def process_launch(config: Config, build: str, python: Path, environment: Mapping[str, str]) -> Launch:
    """The engine as a process: `python` is the interpreter of its build."""
    folders = {"model": "MODEL_DIR", "drafter": "DFLASH2_DIR", "spill": "SPILL_DIR"}
    places = {"key": _key_file(config), "logs": RUN} | {name: config.text(setting) for name, setting in folders.items()}
    argv = (str(python), "-m", "lockstep", *engine_words(config, places, host=config.text("HOST")))
    own = {name: environment[name] for name in PASSED_ON if name in environment}
    seen = {"CUDA_VISIBLE_DEVICES": ",".join(visible(config, environment))} if config.gpus() else {}
    return _launch(config, build, argv, {**own, **OFFLINE, **seen, **engine_variables(config)})


def work_launch(config: Config, build: str, python: Path | None, words: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """One more module of the engine's tree on the GPUs, without a network. `words`: its name first; MODEL and KERNELS in them are places.

    No `python`: a container.
    """
    if python is not None:
        own = process_launch(config, build, python, environment)
        placed = _placed(words, config.text("MODEL_DIR"), str(config.folder("KERNEL_CACHE") / build))
        return dataclasses.replace(own, argv=(str(python), *placed))
    entry = container.Flag(("--entrypoint", INSIDE_PYTHON), "entrypoint", [INSIDE_PYTHON])
    offline = container.Flag(("--network", "none"), "network_mode", "none")
    flags = [*_box(config, build, f"{config.text('CONTAINER_NAME')}-work", environment), offline, entry]
    image, command = f"{config.text('IMAGE')}:{build}", _placed(words, INSIDE_MODEL, INSIDE_KERNELS)
    made = _launch(config, build, container.argv(flags, image, command), {})
    own = {"image": image, "command": command, "options": container.options(flags), "container": f"{made.container}-work"}
    return dataclasses.replace(made, **own)


def with_table(launch: Launch, kernels: Path, name: str) -> Launch:
    """The same launch, told of a launch table of the folder that holds its kernels."""
    words = ("--launch-table", f"{INSIDE_KERNELS if launch.image else kernels}/{name}")
    return dataclasses.replace(launch, argv=(*launch.argv, *words), command=(*launch.command, *words) if launch.image else ())


def _placed(words: Sequence[str], model: str, kernels: str) -> tuple[str, ...]:
    return ("-m", *(word.replace(MODEL, model).replace(KERNELS, kernels) for word in words))


def _box(config: Config, build: str, name: str, environment: Mapping[str, str]) -> list[container.Flag]:
    """What every container of the engine gets, and what it is denied."""
    user = "0:0" if containers.is_rootless(environment) else f"{os.getuid() or container.NOBODY}:{os.getgid() or container.NOBODY}"
    flags = [
        *container.common(name, RUN, user, str(config.root / "docker/seccomp.json")),
        container.memory(32 if config.gpus() else 1),
        *container.gpus(visible(config, environment)),
        container.mount(config.text("MODEL_DIR"), INSIDE_MODEL),
        *(container.variable(name, value) for name, value in (OFFLINE | {"HOME": "/tmp"} | engine_variables(config)).items()),
    ]
    if config.gpus():
        flags.append(container.mount(str(config.folder("KERNEL_CACHE") / build), INSIDE_KERNELS, is_writable=True))
        flags += [container.variable(name, f"{INSIDE_KERNELS}/{name}") for name in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")]
    return flags


def container_launch(config: Config, build: str, environment: Mapping[str, str]) -> Launch:
    """The engine as a container: nothing writable but the run folder, /tmp, kernel cache and spilled states; no capability, private IPC."""
    has_key = bool(_key_file(config))
    lent_key = str(config.folder("STATE_DIR") / "lent-key") if has_key else ""
    is_bridge = config.text("NETWORK") == "bridge"
    flags = [
        *_box(config, build, config.text("CONTAINER_NAME"), environment),
        container.network(host=config.text("HOST"), port=config.number("PORT"), is_bridge=is_bridge),
        container.mount(RUN, INSIDE_LOGS, is_writable=True),
    ]
    if config.text("DRAFTER") == "dflash2":
        flags.append(container.mount(config.text("DFLASH2_DIR"), INSIDE_DRAFTER))
    if has_key:
        flags.append(container.mount(lent_key, INSIDE_KEY))
    if config.number("SPILL_GIB"):
        flags.append(container.mount(config.text("SPILL_DIR"), INSIDE_SPILL, is_writable=True))
    places = {"model": INSIDE_MODEL, "drafter": INSIDE_DRAFTER, "logs": INSIDE_LOGS, "spill": INSIDE_SPILL}
    places["key"] = INSIDE_KEY if has_key else ""
    image = f"{config.text('IMAGE')}:{build}"
    command = tuple(engine_words(config, places, host="0.0.0.0" if is_bridge else config.text("HOST")))
    launch = _launch(config, build, container.argv(flags, image, command), {})
    told = launch.settings | {ENGINE: containers.endpoint(environment)}
    return dataclasses.replace(launch, image=image, command=command, options=container.options(flags), lent_key=lent_key, settings=told)


def engine_words(config: Config, places: Mapping[str, str], *, host: str) -> list[str]:
    """`serve` and its options; `places` are paths as the engine sees them."""
    drafter = config.text("DRAFTER")
    words = ["serve", "--model", places["model"], "--drafter", places["drafter"] if drafter == "dflash2" else drafter]
    words += ["--log-dir", places["logs"]]
    for name, setting in SETTINGS.items():
        if setting.engine_option and setting.kind is FLAG:
            words.append(setting.engine_option if config.is_on(name) else setting.engine_option.replace("--", "--no-"))
        elif setting.engine_option:
            words += [setting.engine_option, host if name == "HOST" else config.text(name)]
    if config.number("SPILL_GIB"):
        words += ["--spill-dir", places["spill"]]
    if places["key"]:
        words += ["--api-key-file", places["key"]]
    for proxy in filter(None, config.text("TRUSTED_PROXY").split(",")):
        words += ["--trusted-proxy", proxy]
    return [*words, "--device", "cuda" if config.gpus() else "cpu", *config.words("ENGINE_ARGUMENTS")]


def engine_variables(config: Config) -> dict[str, str]:
    """Variables of the engine, besides those that say where things are. None of them is secret."""
    told: dict[str, str] = {}
    if config.gpus():
        told |= ON_GPUS | {name: config.text(setting.name) for setting in SETTINGS.values() for name in setting.carried_by}
        told |= {"NCCL_P2P_DISABLE": "1"} if config.text("P2P") == "off" else {}
    return told | dict(word.split("=", 1) for word in config.words("ENGINE_VARIABLES"))


def _key_file(config: Config) -> str:
    """Empty where nobody needs a key."""
    return "" if config.text("AUTH") == "open" else config.text("API_KEY_FILE")


def _launch(config: Config, build: str, argv: tuple[str, ...], environment: dict[str, str]) -> Launch:
    return Launch(
        runtime=config.text("RUNTIME"),
        argv=argv,
        environment=environment,
        cwd=str(config.root),
        host=config.text("HOST"),
        port=config.number("PORT"),
        name=config.text("SERVED_NAME"),
        key_file=_key_file(config),
        container=config.text("CONTAINER_NAME"),
        build=build,
        settings=config.public(),
    )


def differences(launch: Launch, config: Config) -> list[str]:
    """Settings that the running server was started with otherwise, in words."""
    told = []
    of_other_profile = launch.settings.get("PROFILE") != config.text("PROFILE")
    for name, setting in SETTINGS.items():
        # Another profile is one difference; which defaults it has is none of their own.
        if of_other_profile and name != "PROFILE" and config.chosen[name].is_default:
            continue
        if setting.is_fixed_at_start and name in launch.settings and launch.settings[name] != config.text(name):
            now, origin = config.text(name), config.chosen[name].origin
            told.append(f"{name}: the server runs with {launch.settings[name] or 'none'}, {origin} says {now or 'none'}")
    return told
