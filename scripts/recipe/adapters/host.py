"""Gathers the facts that checks ask for. Decides nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Mapping

from recipe.adapters import kernel, process
from recipe.checks.gpu import Gpu, Gpus
from recipe.checks.platform import Platform
from recipe.checks.port import Port
from recipe.checks.venv import Venv

GPU_ANSWER_S = 20.0


def machine() -> Platform:
    return Platform(platform.system(), platform.machine())


def tools(names: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, bool]:
    return {name: process.find(name, environment) is not None for name in names}


def python(environment: Mapping[str, str]) -> Venv:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    return Venv(version, has_ensurepip, can_install=os.geteuid() == 0 and process.find("apt-get", environment) is not None)


def gpus(environment: Mapping[str, str]) -> Gpus:
    """GPUs as the driver's own tool lists them."""
    asked = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    done = process.ask(asked, environment, timeout_s=GPU_ANSWER_S)
    if done.status == 127:
        return Gpus((), "no GPU driver (nvidia-smi is not installed)")
    rows = [row.split(", ") for row in done.output.strip().splitlines()]
    if done.status != 0 or not all(len(row) == 3 and row[0].isdigit() and row[2].isdigit() for row in rows):
        first = done.output.strip().splitlines()[:1]
        return Gpus((), f"nvidia-smi ended with status {done.status}: {first[0] if first else 'no output'}")
    return Gpus(tuple(Gpu(int(index), name, int(memory)) for index, name, memory in rows))


def port(host: str, number: int) -> Port:
    try:
        if kernel.can_bind(host, number):
            return Port(can_bind=True)
    except OSError as error:
        return Port(can_bind=False, problem=error.strerror or str(error))
    return Port(can_bind=False, owners=tuple((pid, kernel.command_name(pid)) for pid in kernel.port_owners(number)))
