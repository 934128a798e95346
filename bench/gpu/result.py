"""The file a bench on a GPU leaves: its command line, how it begins, how it is written. Knows no kernel."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

# What a bench imports that is not beside it.
SOURCES = ("engine", "tests")


def begun(description: str | None, **options: str | int | bool) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Reads the command line, a place `out` and `options` by name with their defaults. Returns the words and how the result begins.

    The command told there makes the file anew under bench/results, wherever it goes now."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path)
    for name, default in options.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    chosen = {name: getattr(asked, name) for name in options}
    words = [f" --{name}" + ("" if value is True else f" {value}") for name, value in chosen.items() if value is not False]
    command = command_of(Path(sys.argv[0]).stem, asked.out.name) + "".join(words)
    return asked, {"command": command, "gpu": torch.cuda.get_device_name(), "torch": str(torch.__version__)}


def command_of(bench: str, name: str) -> str:
    """What to type, in the repository's folder, for `bench` to leave `name` among the results."""
    return f"PYTHONPATH={':'.join(SOURCES)} python bench/gpu/{bench}.py bench/results/{name}"


def write(out: Path, report: dict[str, Any]) -> None:
    """As all results are written."""
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
