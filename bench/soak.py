"""200 random clients for five minutes against the embedded checkpoint with a small pool: what they saw, and what they left behind.

`PYTHONPATH=engine:tests python bench/soak.py [--seconds 300] [--clients 200] [--again 60] [--ranks 1]` writes bench/results/soak.json and
prints it; status 1 if a reply differs from the same request alone without drafts, or from the one before a restart, a client saw what it
should not, a slot or page is lost, or memory grew. Prompt states have room for few in memory, so that they go to disk and come back.

A refused client waits as it was told, but one in twenty, which comes again every second. Both servers run from a copy of the engine, made
first: a restart takes over states only of the very same sources.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fixtures.fronts import Front, end_front, start_embedded
from fixtures.soaking import FLAGS, SLOTS, Finished, Footprint, Soak, asked_again, footprint, idle, lost_slots

ROOT = Path(__file__).parents[1]
EVERY_S = 5.0
AS_TOLD_S, HAMMERING = 600.0, 20
SPILLING = ("--kept-gib", "0.004", "--spill-gib", "0.1")
# Longer prompts have whole tiles, so there are states of them.
KEPT_CHARACTERS = 200
# Growth of a process behind its first third that counts as none.
FLAT_MIB = 16.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("seconds", 300), ("clients", 200), ("again", 60), ("ranks", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "soak.json")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "engine", Path(folder) / "engine", ignore=shutil.ignore_patterns("__pycache__"))
        flags = (*FLAGS, *SPILLING, "--spill-dir", str(Path(folder) / "spill"), "--ranks", str(told.ranks))
        finished: list[Finished] = []
        with serving(Path(folder), flags) as front:
            figures = soak(front, told, finished)
            figures["stopped_with"] = front.stop()
        with serving(Path(folder), flags) as front:
            long = [one for one in finished if len(one.body["messages"][-1]["content"]) > KEPT_CHARACTERS]
            again, different, cached = asked_again(front.http, long, told.again, told.seed, kept=True)
        figures["after_restart"] = {"asked_again": again, "different": different, "cached_tokens": cached}
        figures["good"] &= not different and bool(cached) and figures["stopped_with"] == 0
    told.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(told.out.read_text(encoding="utf-8"))
    return 0 if figures["good"] else 1


@contextmanager
def serving(folder: Path, flags: tuple[str, ...]) -> Iterator[Front]:
    """A server that is ready, of the copy in `folder`; what is left of it ends with the block."""
    front = start_embedded(folder, *flags, engine=folder / "engine")
    try:
        front.wait_for("/health/ready", 200, limit_s=120)
        yield front
    finally:
        end_front(front)


def soak(front: Front, told: argparse.Namespace, finished: list[Finished]) -> dict[str, Any]:
    """Figures of one run; whole replies are added to `finished`."""
    clients = Soak(front.url, told.seed, AS_TOLD_S, HAMMERING)
    pids = {"front": front.process.pid, "engine": front.engine_pid}
    seen: list[dict[str, Footprint]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            seen.append({name: footprint(pid) for name, pid in pids.items()})

    watcher = threading.Thread(target=watch)
    watcher.start()
    began_s = time.monotonic()
    try:
        asyncio.run(clients.run(told.clients, told.seconds))
    finally:
        done.set()
        watcher.join()
    spent_s = time.monotonic() - began_s
    health = idle(front.http)
    lost = lost_slots(front.http, SLOTS)
    idle(front.http)
    again, different, _ = asked_again(front.http, clients.finished, told.again, told.seed)
    finished += clients.finished
    after = idle(front.http)
    early = {name: max(one[name].mib for one in seen[len(seen) // 6 : len(seen) // 3 + 1]) for name in pids}
    growth = {name: round(seen[-1][name].mib - early[name], 1) for name in pids}
    leaked = health["pool_tokens"] - after["pool_free_tokens"]
    return {
        "good": not (different or clients.wrong or lost or leaked or max(growth.values()) > FLAT_MIB),
        "seconds": round(spent_s, 1),
        "clients": told.clients,
        "ranks": told.ranks,
        "load_average": round(os.getloadavg()[0], 1),
        "outcomes": dict(sorted(clients.outcomes.items())),
        "whole_replies": len(clients.finished),
        "asked_again": again,
        "different": different,
        "wrong": clients.wrong[:20],
        "longest_s_by_priority": clients.longest_s,
        "pauses": health["pauses_total"],
        "kept": after["kept"],
        "drafted_tokens": health["drafted_total"],
        "accepted_tokens": health["accepted_total"],
        "reply_tokens": health["completion_tokens_total"],
        "lost_slots": lost,
        "leaked_tokens": leaked,
        "growth_mib": growth,
        "resident_mib": {name: [one[name].mib for one in seen[:: max(1, len(seen) // 12)]] for name in pids},
        "first": {name: asdict(one) for name, one in seen[0].items()},
        "last": {name: asdict(one) for name, one in seen[-1].items()},
    }


if __name__ == "__main__":
    sys.exit(main())
