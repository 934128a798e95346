"""Gathers the facts that checks ask for. Decides nothing."""

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence

from recipe.adapters import kernel, process
from recipe.checks.gpu import Gpu, Gpus
from recipe.checks.platform import Platform
from recipe.checks.port import Port
from recipe.checks.venv import Venv

GPU_ANSWER_S = 20.0
CSV = ("--format=csv,noheader,nounits",)
FIELDS = (
    "index", "uuid", "pci.bus_id", "name", "driver_version", "memory.total", "memory.free", "memory.used", "power.limit", "temperature.gpu",
    "clocks_event_reasons.active", "pcie.link.width.current", "pcie.link.width.max", "pcie.link.gen.max", "pcie.link.gen.gpumax",
)  # fmt: skip


def machine() -> Platform:
    return Platform(platform.system(), platform.machine())


def tools(names: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, bool]:
    return {name: process.find(name, environment) is not None for name in names}


def python(environment: Mapping[str, str]) -> Venv:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    return Venv(version, has_ensurepip, can_install=os.geteuid() == 0 and process.find("apt-get", environment) is not None)


def gpus(environment: Mapping[str, str]) -> Gpus:
    """GPUs, who uses them, and the ways between them, as the driver's own tool tells before anything of ours is installed."""
    done = _nvidia_smi(environment, f"--query-gpu={','.join(FIELDS)}", *CSV)
    if done.status == 127:
        return Gpus((), f"no GPU driver ({done.output})")
    try:
        if done.status != 0:
            raise ValueError
        rows: list[dict[str, str]] = [dict(zip(FIELDS, row.split(", "), strict=True)) for row in done.output.strip().splitlines()]
        programs = _programs(environment)
        found = tuple(_gpu(row, programs) for row in rows)
    except ValueError:
        first = done.output.strip().splitlines()[:1]
        return Gpus((), f"nvidia-smi ended with status {done.status}: {first[0] if first else 'no output'}")
    ways = _ways(_nvidia_smi(environment, "topo", "-m").output) if len(found) > 1 else ()
    return Gpus(found, ways=ways)


def _nvidia_smi(environment: Mapping[str, str], *words: str) -> process.Done:
    return process.ask(["nvidia-smi", *words], environment, timeout_s=GPU_ANSWER_S)


def _gpu(row: Mapping[str, str], programs: Sequence[tuple[str, str]]) -> Gpu:
    """Raises ValueError where a figure that every card has is none."""
    watts, reasons = row["power.limit"], row["clocks_event_reasons.active"]
    return Gpu(
        index=int(row["index"]),
        uuid=row["uuid"],
        bus=row["pci.bus_id"],
        name=row["name"],
        driver=row["driver_version"],
        total_mib=int(row["memory.total"]),
        free_mib=int(row["memory.free"]),
        used_mib=int(row["memory.used"]),
        watts=float(watts) if watts.replace(".", "", 1).isdigit() else None,
        celsius=_number(row["temperature.gpu"]),
        throttle=int(reasons, 16) if reasons.startswith("0x") else 0,
        width=_number(row["pcie.link.width.current"]),
        most_width=_number(row["pcie.link.width.max"]),
        generation=_number(row["pcie.link.gen.max"]),
        most_generation=_number(row["pcie.link.gen.gpumax"]),
        programs=tuple(text for uuid, text in programs if uuid == row["uuid"]),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _programs(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """UUID of the GPU and, in words, each program that computes on it."""
    told = _nvidia_smi(environment, "--query-compute-apps=gpu_uuid,pid,used_memory", *CSV).output
    rows = [row.split(", ") for row in told.strip().splitlines()]
    return [(uuid, f"{kernel.described(int(pid))}, {mib} MiB") for uuid, pid, mib in (row for row in rows if len(row) == 3)]


def _ways(table: str) -> tuple[tuple[int, int, str], ...]:
    """The matrix of `nvidia-smi topo -m`: its rows and first columns are GPUs."""
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in table.splitlines()]
    header = next((row for row in rows if row[:1] == ["GPU0"]), [])
    columns = [int(word[3:]) for word in header if re.fullmatch(r"GPU[0-9]+", word)]
    body = {int(row[0][3:]): row[1:] for row in rows[1:] if row and re.fullmatch(r"GPU[0-9]+", row[0]) and row is not header}
    return tuple((one, other, way) for one, row in body.items() for other, way in zip(columns, row, strict=False) if one < other)


def port(host: str, number: int) -> Port:
    try:
        if kernel.can_bind(host, number):
            return Port(can_bind=True)
    except OSError as error:
        return Port(can_bind=False, problem=error.strerror or str(error))
    return Port(can_bind=False, owners=tuple(map(kernel.described, kernel.port_owners(number))))
