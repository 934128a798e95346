"""Builds, checks and times all that runs on a GPU, in one call: `python bench/gpu/suite.py OUT_DIR`. Knows no kernel.

Every launch is compiled and looked at, `tests/gpu` runs, then every bench of this folder: each a process of its own with a time limit, and
what fails keeps nothing behind it from running. OUT_DIR, bench/results for one, gets NAME_CARD.json of each bench that ended well, NAME.log
of each step, and suite_CARD.json: commit, GPU, driver, PyTorch, and of each step its command, seconds, exit status and last line. Exit
status 1 if a step failed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from result import SOURCES, command_of

ROOT = Path(__file__).resolve().parents[2]
# Limits in seconds: a cold machine compiles on the way.
CHECKS = {"build": (("tests/kernels", "-k", "compile"), 1200), "tests": (("tests/gpu",), 1800)}
BENCHES = {"experts": 600, "dense": 600, "index": 600, "sampler": 600, "round": 900, "prompt": 900}
TIMED_OUT = 124
_CARD = "import json, torch; print(json.dumps({'gpu': torch.cuda.get_device_name(), 'torch': str(torch.__version__)}))"


@dataclass(frozen=True, slots=True)
class Step:
    """One process: `words` behind the interpreter, `limit_s` seconds; `leaves` is the file it writes where its last word says."""

    name: str
    words: tuple[str, ...]
    limit_s: float
    leaves: str = ""

    @property
    def command(self) -> str:
        """What to type for it, in the repository's folder."""
        return command_of(self.name, self.leaves) if self.leaves else " ".join(["python", *self.words])


def steps(card: str) -> list[Step]:
    """All of them, checks first. `card` is how files name it."""
    checks = [Step(name, ("-m", "pytest", "-q", *words), limit) for name, (words, limit) in CHECKS.items()]
    return checks + [Step(name, (f"bench/gpu/{name}.py",), limit, f"{name}_{card}.json") for name, limit in BENCHES.items()]


def run(step: Step, out: Path) -> dict[str, Any]:
    """Run a step, its output to NAME.log; a result takes the place of an older one if the step ended well. `failed` says why not."""
    under_way, log = out / f".{step.name}", out / f"{step.name}.log"
    under_way.mkdir(exist_ok=True)
    left = under_way / step.leaves
    words = [*step.words, str(left)] if step.leaves else list(step.words)
    paths = [*(str(ROOT / name) for name in SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
    begun = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            rc = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            rc = TIMED_OUT
        finally:
            _end(process)
    failed = f"longer than {step.limit_s:g} s" if rc == TIMED_OUT else f"exit status {rc}" if rc else None
    if step.leaves and not failed:
        failed = None if left.is_file() else f"left no {step.leaves}"
        if not failed:
            left.replace(out / step.leaves)
    for rest in under_way.iterdir():
        rest.unlink()
    under_way.rmdir()
    said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = {"name": step.name, "command": step.command, "limit_s": step.limit_s}
    told |= {"seconds": round(time.monotonic() - begun, 1), "rc": rc, "failed": failed, "said": said[-1][:300] if said else ""}
    return told


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever a step started ends with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_all(asked: Iterable[Step], out: Path, head: dict[str, Any], summary: str) -> int:
    """Run steps in order, writing `summary` anew behind each: an end in between leaves what was done. Exit status."""
    done: list[dict[str, Any]] = []
    begun = time.monotonic()
    for step in asked:
        print(f"{step.name}: at most {step.limit_s:g} s, output in {out / step.name}.log", flush=True)
        done.append(run(step, out))
        print(f"{step.name}: {done[-1]['failed'] or 'ended well'} after {done[-1]['seconds']} s: {done[-1]['said']}", flush=True)
        failed = [one["name"] for one in done if one["failed"]]
        report = head | {"seconds": round(time.monotonic() - begun, 1), "failed": failed, "steps": done}
        (out / summary).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(one["failed"] for one in done))


def told(command: Sequence[str]) -> str | None:
    """The last line a program prints; None if it cannot say."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else None


def facts() -> dict[str, Any] | None:
    """Commit, first GPU, its driver and PyTorch; None without a GPU. A copy without Git has no commit."""
    card = told([sys.executable, "-c", _CARD])
    commit = told(["git", "describe", "--always", "--dirty", "--abbrev=12"])
    driver = told(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return None if card is None else {"commit": commit, "driver": driver, **json.loads(card)}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--only", action="append", choices=[*CHECKS, *BENCHES], help="this step, may be said again; all by default")
    parser.add_argument("--commit", help="where the sources are a copy that Git does not know")
    asked = parser.parse_args(argv)
    head = facts()
    if head is None:
        print("no GPU: PyTorch names no CUDA device here; needed: one, and a CUDA build of PyTorch", file=sys.stderr)
        return 2
    head["commit"] = asked.commit or head["commit"]
    card = head["gpu"].removeprefix("NVIDIA ").lower().replace(" ", "_")
    asked.out.mkdir(parents=True, exist_ok=True)
    wanted = [step for step in steps(card) if not asked.only or step.name in asked.only]
    return run_all(wanted, asked.out.resolve(), {"command": command_of("suite", "")} | head, f"suite_{card}.json")


if __name__ == "__main__":
    sys.exit(main())
