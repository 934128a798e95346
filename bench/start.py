"""How long a user waits: a plain start on an installed embedded profile until LIVE, `doctor`, `DRY_RUN=1`, each several times in turn.

`python bench/start.py` writes bench/results/start.json; status 1 where a median is not within its bound. It serves a clone of HEAD in a
folder of its own, on a free port; what a start installs goes to --data-dir, the usual place, and stays. Beside each time stand the
processor seconds of the work, server included, those in which programs of this machine waited for a processor, and the load before: on a
busy machine the times are not the program's own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench/results/start.json"
# Seconds that a median may take.
BOUNDS = {"start": 6.0, "doctor": 2.0, "dry run": 1.5}
MARKS = {"start": "is now LIVE! on port", "doctor": "Nothing stands in the way", "dry run": "[6/6]"}
WORDS: dict[str, tuple[list[str], dict[str, str]]] = {"start": ([], {}), "doctor": (["doctor"], {}), "dry run": ([], {"DRY_RUN": "1"})}


class Installation:
    """A clone of the repository's last commit with settings of its own."""

    def __init__(self, place: Path, data_dir: str) -> None:
        self.root = place / "clone"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(self.root)], check=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        kept = {name: value for name, value in os.environ.items() if name != "CONTAINER_NAME"}
        self.environment = kept | {"PROFILE": "embedded", "PORT": port, "LOG_KEEP": "0"} | ({"DATA_DIR": data_dir} if data_dir else {})
        self.is_pinned = self.run("patches", "verify").returncode == 0
        if not self.is_pinned:
            self.must("patches", "pin")
        self.must("prepare")

    def run(self, *words: str, script: str = "start.sh", **settings: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.root / script), *words]
        return subprocess.run(
            command, env=self.environment | settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def must(self, *words: str, script: str = "start.sh", **settings: str) -> str:
        done = self.run(*words, script=script, **settings)
        if done.returncode != 0:
            sys.exit(f"{script} {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def close(self) -> None:
        self.must(script="stop.sh")


@contextmanager
def installation(data_dir: str) -> Iterator[Installation]:
    with tempfile.TemporaryDirectory() as place:
        made = Installation(Path(place), data_dir)
        try:
            yield made
        finally:
            made.close()


def waited_s() -> float | None:
    """Seconds since boot in which some program waited for a processor; None where the kernel does not count them."""
    try:
        told = re.search(r"^some .* total=(\d+)$", Path("/proc/pressure/cpu").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(told[1]) / 1e6 if told else None


def processor_s(made: Installation) -> float:
    """Seconds of processors that this program's ended children took, and everything that lives in the clone."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = spent.ru_utime + spent.ru_stime
    for place in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = os.readlink(place / "cwd") == str(made.root)
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if is_ours else 0.0
    return total


def once(made: Installation, what: str) -> dict[str, float | None]:
    words, settings = WORDS[what]
    load, waited, spent, began = os.getloadavg()[0], waited_s(), processor_s(made), time.monotonic()
    said = made.must(*words, **settings)
    took, later, work = time.monotonic() - began, waited_s(), processor_s(made) - spent
    if MARKS[what] not in said:
        sys.exit(f"{what}: {MARKS[what]!r} was not said: {said}")
    if what == "start":
        made.must(script="stop.sh")
    others = None if waited is None or later is None else round(later - waited, 3)
    return {"seconds": round(took, 3), "processor_s": round(work, 2), "waited_for_processors_s": others, "load_before": round(load, 2)}


def summary(runs: list[dict[str, Any]], bound_s: float) -> dict[str, Any]:
    median = statistics.median(run["seconds"] for run in runs)
    return {"median_s": round(median, 3), "most_s": max(run["seconds"] for run in runs), "bound_s": bound_s, "runs": runs}


def machine() -> Mapping[str, Any]:
    models = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {"machine": platform.machine(), "processor": models[0] if models else "", "processors": os.cpu_count(), "niceness": os.nice(0)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--output", type=Path, default=RESULT)
    told = parser.parse_args()
    with installation(told.data_dir) as made:
        # The first of each is left out: it reads the files from the disk.
        rounds = [{what: once(made, what) for what in WORDS} for _ in range(told.runs + 1)][1:]
        commit = subprocess.run(
            ["git", "-C", str(made.root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        results = {what: summary([one[what] for one in rounds], BOUNDS[what]) for what in WORDS}
        facts = {"python": platform.python_version(), "commit": commit, "engine_was_pinned": made.is_pinned}
    told.output.write_text(json.dumps({**machine(), **facts, "results": results}, indent=1) + "\n")
    for what, one in results.items():
        print(f"{what}: median {one['median_s']} s, most {one['most_s']} s, bound {one['bound_s']} s")
    return int(any(one["median_s"] >= one["bound_s"] for one in results.values()))


if __name__ == "__main__":
    sys.exit(main())
