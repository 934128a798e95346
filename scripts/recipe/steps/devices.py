"""Step 4: do the GPUs get each other's bytes, and are there launch tables for them? The CPU needs neither."""

import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from failure import Failure
from recipe import files, runlog, runtimes
from recipe.adapters import host, pci
from recipe.job import LONG_EVERY_S, Job
from recipe.launching import KERNELS, MODEL, with_table
from recipe.plan import Act, Action, Task, run_actions
from recipe.record import Launch

PEERS_LOG, TUNE_LOG = "peers.log", "tune.log"
# Named by what they are made for, so that the table of a running server is never another one's.
TABLE, TUNED = "launch-table-{}.json", "tuned-{}.json"
# Stages of the probe, and what it takes to begin.
STAGES, BEGIN_S = 3, 180.0
NO_TUNER = "No module named tuning"
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
        # A plan is that of a start which finds or makes one.
        self._has_table = bool(config.gpus()) and config.is_on("TUNE") and config.is_on("DRY_RUN")

    def is_ready(self) -> bool:
        """Never: whether bytes pass is asked at every start, and whether a table is whole."""
        return False

    def actions(self) -> Sequence[Action]:
        if not self._job.config.gpus():
            return (Task("nothing to probe and nothing to tune: the engine computes on the CPU", self._say_cpu),)
        shown = self._job.shown_folder()
        acts: list[Action] = []
        if self._job.config.number("RANKS") > 1:
            # One rank has no peer.
            acts.append(Act(runtimes.of(self._probe).line(self._probe, shown), self._ask_peers))
        if not self._job.config.is_on("TUNE"):
            untuned = "TUNE=0: kernels run as they are by default"
            return (*acts, Task(untuned, lambda: self._job.ui.inform("I_TUNE", untuned)))
        words = ["--out", f"{KERNELS}/{self._table.name}", "--device", "cuda"]
        forms = ["--dense", self._job.config.text("DENSE"), "--ranks", self._job.config.text("RANKS")]
        tune = self._work(["tuning", "--model", MODEL, *words, *forms])
        return (*acts, Act(runtimes.of(tune).line(tune, shown), lambda: self._ask_table(tune)))

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

    @functools.cached_property
    def _cards(self) -> list[tuple[str, str]]:
        """Model and driver of each GPU in its order. A dry run asks none."""
        config = self._job.config
        is_asked = config.gpus() and not config.is_on("DRY_RUN")
        return [(gpu.name, gpu.driver) for gpu in host.gpus(self._job.environment).chosen(config.gpus())] if is_asked else []

    @functools.cached_property
    def _signature(self) -> str:
        """What a table is made for: the build, the cards, the form of the weights, how many share them."""
        config = self._job.config
        return files.digest(self._build, *(f"{name}:{driver}" for name, driver in self._cards), config.text("DENSE"), config.text("RANKS"))

    @property
    def _table(self) -> Path:
        return self._place / TABLE.format(self._signature if self._cards else "<GPUs>")

    @property
    def _mark(self) -> Path:
        return self._place / TUNED.format(self._signature)

    def with_table(self, launch: Launch) -> Launch:
        """The launch of a server that uses the table, if there is one for it."""
        return with_table(launch, self._place, self._table.name) if self._has_table else launch

    def _is_tuned(self) -> bool:
        """Whether there is a whole table, made for this very build and these GPUs, and not changed since."""
        told = files.read_json(self._mark) or {}
        return (files.read_json(self._table) or {}).get("complete") is True and files.sha256(self._table) == told.get("sha256")

    def _ask_table(self, tune: Launch) -> None:
        ui = self._job.ui
        self._has_table = self._is_tuned()
        if self._has_table:
            ui.inform("I_READY", f"launch table {self._table}")
        elif self._served:
            ui.inform("I_TUNE", "a server works on these GPUs, so nothing can be measured: ./stop.sh, then ./start.sh tunes")
        elif len({name for name, _ in self._cards}) > 1:
            ui.inform("I_TUNE", "the GPUs are of two kinds, so no table holds for both: kernels run as they are by default")
        else:
            self._make_table(tune)

    def _make_table(self, tune: Launch) -> None:
        # One that is not whole must not be gone on with.
        self._drop_table()
        status, said = self._carry_out(tune, TUNE_LOG, self._job.config.number("TUNE_TIMEOUT"))
        if status == 1 and any(NO_TUNER in line for line in said):
            self._job.ui.inform("I_TUNE", "this build makes no launch tables: kernels run as they are by default")
            return
        told = _object(said)
        if status != 0 or (files.read_json(self._table) or {}).get("complete") is not True:
            self._drop_table()
            ends = {None: "it did not end in time (TUNE_TIMEOUT)", 0: "its table is not complete"}
            cause = ends.get(status) or told.get("cause") or f"status {status}"
            lines = " | ".join(line for line in said if not line.startswith("{"))
            raise Failure("E_AUTOTUNE", found=f"{cause}: {lines or 'no further output'}", needed="a complete table")
        files.write_json(self._mark, {"sha256": files.sha256(self._table), "cards": self._cards})
        self._has_table = True
        counts = f"{told.get('changed')} of {told.get('entries')} launches faster than by default"
        self._job.ui.inform("I_TUNE", f"launch table {self._table}: {counts}")

    def _drop_table(self) -> None:
        for path in (self._mark, *self._place.glob(f"{self._table.name}*")):
            path.unlink(missing_ok=True)


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
