"""From a checkpoint to a launch table: which launches its step makes, one search for each, the file written after every one."""

import hashlib
import re
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch

import lockstep.kernels
from lockstep.config.fields import ConfigError
from lockstep.config.launch_table import Entry, LaunchTable, Origin, TableError, read_launch_table
from lockstep.core.errors import LockstepError
from lockstep.kernels.tuned import Case, Configuration, Tuned
from lockstep.run.tables import facts
from tuning.asked import asked_of
from tuning.benches import BENCHES
from tuning.search import points, search

_DRIVER = Path("/proc/driver/nvidia/version")
Say = Callable[[str], None]


class CannotLoad(Exception):
    """The model or the device cannot be used."""


class KernelFault(Exception):
    """A kernel did not compile or did not run; the message is the compiler's or the driver's."""


def tune(model: Path, out: Path, device: str, dense: str, ranks: int, seeds: int, say: Say) -> dict[str, Any]:
    """Write the table; returns what the last line tells. Raises CannotLoad or KernelFault."""
    if device == "cuda" and not torch.cuda.is_available():
        raise CannotLoad("PyTorch finds no CUDA device; needed: a visible GPU, or --device cpu")
    try:
        cases = asked_of(model, device, dense, ranks)
    except (LockstepError, ConfigError, OSError, ValueError) as error:
        raise CannotLoad(f"{model}: {error}") from error
    origin = origin_of(device, dense, ranks)
    kept = {(entry.kernel, tuple(entry.case)): entry for entry in gone_on_with(out, origin)}
    entries: list[Entry] = []
    for kernel, case, default in cases:
        begun = time.monotonic()
        entry = kept.get((kernel.name, case)) or _search(kernel, case, default, device, seeds)
        entries.append(entry)
        save(out, LaunchTable(False, origin, _now(), entries))
        how = "as before" if (kernel.name, case) in kept else f"{entry.tried} tried in {time.monotonic() - begun:.1f} s"
        say(f"{kernel.name} {' '.join(map(str, case))}: {_told(entry)} ({how})")
    save(out, LaunchTable(True, origin, _now(), entries))
    return {"complete": True, "entries": len(entries), "changed": sum(entry.configuration != entry.default for entry in entries)}


def origin_of(device: str, dense: str, ranks: int) -> Origin:
    """Where a table is made now."""
    here: dict[str, Any] = facts(device, dense, ranks)
    return Origin(build=build_digest(), driver=_driver(device), torch=str(torch.__version__), nvrtc=_compiler(device), **here)


def _driver(device: str) -> str:
    found = re.search(r"\b(\d+\.\d+[.\d]*)\s", _DRIVER.read_text()) if device == "cuda" and _DRIVER.exists() else None
    return found[1] if found else ""


def _compiler(device: str) -> str:
    return ".".join(map(str, import_module("cuda.bindings.nvrtc").nvrtcVersion()[1:])) if device == "cuda" else ""


def build_digest() -> str:
    """16 hex digits over every file of the kernels."""
    folder = Path(lockstep.kernels.__file__).parent
    told = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".cu", ".cuh")):
        told.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return told.hexdigest()[:16]


def gone_on_with(out: Path, origin: Origin) -> list[Entry]:
    """What a run that did not end left in `out`, if it was made on this device, by these kernels, for the same."""
    try:
        table = read_launch_table(out)
    except TableError:
        return []
    return table.entries if table.origin == origin and not table.complete else []


def save(out: Path, table: LaunchTable) -> None:
    """Whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f"{out.name}.part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")
    part.replace(out)


def _search(kernel: Tuned, case: Case, default: Configuration, device: str, seeds: int) -> Entry:
    bench = BENCHES[kernel.name](kernel, case, torch.device(device), range(1, seeds + 1))
    try:
        found = search(bench, default, points(kernel.space, default, bench.allowed))
    except RuntimeError as error:
        raise KernelFault(f"{kernel.name} {' '.join(map(str, case))}: {error}") from error
    return Entry(
        kernel=kernel.name,
        case=list(case),
        source=kernel.digest,
        configuration=dict(found.configuration),
        default=dict(default),
        us=round(found.timing.us, 3),
        default_us=round(found.default.us, 3),
        spread=round(max(found.timing.spread, found.default.spread), 4),
        tried=found.tried,
        refused=found.refused,
    )


def _told(entry: Entry) -> str:
    if entry.configuration == entry.default:
        return f"default stays, {entry.us:.1f} us"
    changed = " ".join(f"{name}={value}" for name, value in entry.configuration.items() if value != entry.default[name])
    return f"{changed}, {entry.us:.1f} us for {entry.default_us:.1f}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
