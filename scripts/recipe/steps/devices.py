"""Step 4: do the GPUs get each other's bytes, and are there launch tables for them? The CPU needs neither."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from failure import Failure
from recipe import files, runlog, runtimes
from recipe.adapters import host, pci
from recipe.job import LONG_EVERY_S, Job
from recipe.launching import KERNELS, MODEL
from recipe.plan import Act, Action, Task, run_actions
from recipe.record import Launch

PEERS_LOG, TUNE_LOG = "peers.log", "tune.log"
TABLE, TUNED = "launch-table.json", "tuned.json"
# Stages of the probe, and what it takes to begin.
STAGES, BEGIN_S = 3, 180.0
# How the engine's command ends whose one kernel does not compile, and how one that has no such verb does.
BAD_CANDIDATE, NO_VERB = 5, 2
COMPILER_LINES = 20


class DevicesStep:
    """`work(words)` is the launch of one more module of the engine's tree; `build` its digest. A `served` GPU is not fit to measure on."""

    title = "Peers and tuning"

    def __init__(self, job: Job, work: Callable[[Sequence[str]], Launch], build: str, *, served: bool) -> None:
        config = job.config
        self._job, self._work, self._build, self._served = job, work, build, served
        self._place = config.folder("KERNEL_CACHE") / build
        self._is_direct = config.text("P2P") == "on"
        timeout = config.text("PEER_TIMEOUT")
        self._probe = work(["peers", "--device", "cuda", "--timeout", timeout, *(() if self._is_direct else ("--no-direct",))])
        self._tune = work(["lockstep", "tune", "--model", MODEL, "--table", f"{KERNELS}/{TABLE}"])

    def is_ready(self) -> bool:
        """Never: whether bytes pass is asked at every start, and whether a table is whole."""
        return False

    def actions(self) -> Sequence[Action]:
        if not self._job.config.gpus():
            return (Task("nothing to probe and nothing to tune: the engine computes on the CPU", self._say_cpu),)
        shown = self._job.shown_folder()
        # One rank has no peer.
        asked = [(self._probe, self._ask_peers)] if self._job.config.number("RANKS") > 1 else []
        asked.append((self._tune, self._ask_table))
        return tuple(Act(runtimes.of(launch).line(launch, shown), act) for launch, act in asked)

    def run(self) -> None:
        run_actions(self)

    def _say_cpu(self) -> None:
        self._job.ui.inform("I_TUNE", "the CPU has no peer and no launch table")

    def _carry_out(self, launch: Launch, log: str, limit_s: float) -> tuple[int | None, list[str]]:
        """Exit status, None where it did not end in time, and the last lines of what it said."""
        folder, ui, began = self._job.folder(), self._job.ui, time.monotonic()
        ui.begin()

        def tell() -> None:
            last = (runlog.tail(folder / log, 1) or [""])[0]
            ui.progress(f"{Path(log).stem} for {time.monotonic() - began:.0f} s: {last[:100]}", every_s=LONG_EVERY_S)

        status = runtimes.of(launch).work(launch, folder, folder / log, limit_s, tell)
        ui.settle()
        return status, runlog.tail(folder / log, COMPILER_LINES)

    def _ask_peers(self) -> None:
        limit_s = STAGES * self._job.config.number("PEER_TIMEOUT") + BEGIN_S
        status, said = self._carry_out(self._probe, PEERS_LOG, limit_s)
        told = _object(said)
        if status != 0 or told.get("cause") != "":
            cause = told.get("cause") or ("the probe did not end" if status is None else f"status {status}: {(said or ['no output'])[-1]}")
            facts = host.gpus(self._job.environment)
            chosen = facts.chosen(self._job.config.gpus())
            ways = [f"between GPU {one} and {other}: {way}" for one, other, way in facts.ways]
            found = "; ".join((str(cause), *ways, *pci.peer_facts([gpu.bus for gpu in chosen])))
            needed = "the bytes that were sent, and their sum, on both GPUs"
            raise Failure("E_P2P", found=found, needed=needed, remedy="" if self._is_direct else "look at the cause named and the log")
        speeds = ", ".join(f"{name} {speed:g} GiB/s" for name, speed in told.get("gib_s", {}).items())
        self._job.ui.inform("I_P2P" if self._is_direct else "W_P2P", speeds)

    def signature(self) -> str:
        """What a table is made for: the build, the model and driver of each GPU in its order, the form of the weights."""
        chosen = host.gpus(self._job.environment).chosen(self._job.config.gpus())
        return files.digest(self._build, *(f"{gpu.name}:{gpu.driver}" for gpu in chosen), self._job.config.text("DENSE"))

    def is_tuned(self) -> bool:
        """Whether there is a whole table, made for this very build and these GPUs, and not changed since."""
        told, table = files.read_json(self._place / TUNED) or {}, self._place / TABLE
        if told.get("signature") != self.signature() or (files.read_json(table) or {}).get("complete") is not True:
            return False
        return files.sha256(table) == told.get("sha256")

    def _ask_table(self) -> None:
        ui, table = self._job.ui, self._place / TABLE
        if self.is_tuned():
            ui.inform("I_READY", f"launch table {table}")
        elif self._served:
            ui.inform("I_TUNE", "a server works on these GPUs, so nothing can be measured: ./stop.sh, then ./start.sh tunes")
        else:
            self._make_table(table)

    def _make_table(self, table: Path) -> None:
        # One that is not whole, or for other cards, must not be gone on with.
        for path in (self._place / TUNED, table):
            path.unlink(missing_ok=True)
        status, said = self._carry_out(self._tune, TUNE_LOG, self._job.config.number("TUNE_TIMEOUT"))
        if status == NO_VERB and any("invalid choice: 'tune'" in line for line in said):
            self._job.ui.inform("I_TUNE", "this build has no launch tables; it uses its only kernels")
            return
        if status != 0 or (files.read_json(table) or {}).get("complete") is not True:
            table.unlink(missing_ok=True)
            ends = {None: "it did not end in time (TUNE_TIMEOUT)", 0: "its table is not complete", BAD_CANDIDATE: "a kernel failed"}
            found = f"{ends.get(status, f'status {status}')}: {' | '.join(said) or 'no output'}"
            raise Failure("E_AUTOTUNE", found=found, needed="a complete table")
        files.write_json(self._place / TUNED, {"signature": self.signature(), "sha256": files.sha256(table)})
        self._job.ui.inform("I_TUNE", f"launch table {table}")


def _object(lines: Sequence[str]) -> dict:
    """The last line that is a JSON object; empty for none."""
    for line in reversed(lines):
        try:
            told = json.loads(line[line.index("{") :])
        except ValueError:
            continue
        if isinstance(told, dict):
            return told
    return {}
