"""Puts a launch table to use on this rank's device, or says why not. Knows no kernel by name."""

import logging
from pathlib import Path

import torch

from lockstep.config.launch_table import Origin, TableError, read_launch_table
from lockstep.kernels.tuned import KERNELS

log = logging.getLogger("lockstep.tables")


def facts(device: torch.device | str, dense: str, ranks: int) -> dict[str, str | int]:
    """What a table and a server must have in common, named as in `Origin`."""
    seen = torch.device(device)
    card = torch.cuda.get_device_name(seen) if seen.type == "cuda" else "cpu"
    capability = ".".join(map(str, torch.cuda.get_device_capability(seen))) if seen.type == "cuda" else "cpu"
    return {"gpu": card, "capability": capability, "dense": dense, "ranks": ranks}


def use_table(path: Path, device: torch.device | str, dense: str, ranks: int) -> tuple[str, ...]:
    """Let launches run as the table says; returns, for each entry left out, which and why: those launches keep their defaults.

    Raises TableError for a table that is unreadable, not complete or made for another card, form of matrices or number of ranks.
    """
    table = read_launch_table(path)
    check(path, table.complete, table.origin, facts(device, dense, ranks))
    left_out = []
    for entry in table.entries:
        kernel = KERNELS.get(entry.kernel)
        why = kernel.refusal(entry.source, entry.configuration) if kernel else "no such kernel"
        if kernel and not why:
            kernel.chosen[tuple(entry.case)] = entry.configuration
        else:
            left_out.append(f"{entry.kernel} {' '.join(map(str, entry.case))}: {why}")
    log.info("launch table %s: %d of %d entries used", path, len(table.entries) - len(left_out), len(table.entries))
    for line in left_out:
        log.warning("launch table: default kept for %s", line)
    return tuple(left_out)


def check(path: Path, complete: bool, origin: Origin, here: dict[str, str | int]) -> None:
    """Raise TableError unless the table is whole and made for what is `here`."""
    other = [f"{name} {getattr(origin, name)}, here {value}" for name, value in here.items() if getattr(origin, name) != value]
    if other or not complete:
        told = f"made for {'; '.join(other)}" if other else "not complete"
        raise TableError(f"launch table {path}: {told}; needed: one that `python -m tuning` made for this device, or no --launch-table")
