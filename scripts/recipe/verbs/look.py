"""status, config and logs: look, change nothing, take no lock."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from failure import Failure
from recipe import launching, runlog, server
from recipe.job import Job
from recipe.settings import GROUPS, SETTINGS

RUNS, STOPPED, UNWELL = 0, 3, 4
FOLLOW = ("-f", "--follow")
SHOWN, SEARCHED = 40, 100_000
FOLLOW_EVERY_S = 0.3


def status(job: Job, words: Sequence[str]) -> int:
    """Exit status 0: it serves; 3: none runs; 4: it loads, or something of it died."""
    record = server.find(job.places)
    if record is None:
        job.ui.line("stopped: no server was started, or ./stop.sh ended it")
        return STOPPED
    launch = record.launch
    job.ui.line(
        f"server:   {launch.url}   model: {launch.name}   profile: {launch.settings.get('PROFILE', '?')}   runtime: {launch.runtime}"
    )
    job.ui.line(f"run:      {record.folder}")
    if not server.is_alive(record):
        number = record.identity.pid if record.identity else launch.container
        last = runlog.tail(record.log, 1)
        job.ui.line(f"state:    dead: the server (process {number}) ended without ./stop.sh")
        job.ui.line(f"last log: {last[0] if last else '(no line)'}")
        job.ui.line("do this:  ./start.sh archives its logs and starts again")
        return UNWELL
    health = server.health(record)
    if health.state == "ready":
        job.ui.line("state:    live")
    elif health.state == "failed":
        job.ui.line(f"state:    engine dead: the server lives but its engine does not: {health.cause}")
        job.ui.line("do this:  ./start.sh archives its logs and starts again")
    else:
        job.ui.line(f"state:    {health.state}: {health.cause}")
    for difference in launching.differences(launch, job.config):
        job.ui.line(f"differs:  {difference}")
    return RUNS if health.state == "ready" else UNWELL


def config(job: Job, words: Sequence[str]) -> int:
    """Every setting with its value and where it came from; then what the sources hold that is not used."""
    width = max(map(len, SETTINGS))
    for group in GROUPS:
        job.ui.headline(group)
        for name, setting in SETTINGS.items():
            if setting.group == group and job.ui.is_json:
                origin = job.config.chosen[name].origin
                job.ui.say(setting=name, value=job.config.shown(name), unit=setting.unit, allowed=setting.kind.allowed, origin=origin)
            elif setting.group == group:
                unit = f" {setting.unit}" if setting.unit else ""
                job.ui.line(f"  {name:<{width}}  {(job.config.shown(name) + unit) or '(empty)'}   <- {job.config.chosen[name].origin}")
    for notice in job.config.notices:
        if notice.is_harmless:
            job.ui.line(f"note: {notice.text}")
    return 0


def logs(job: Job, words: Sequence[str]) -> int:
    """Last 40 lines of the running server's log; `-f` goes on until interrupted or until the server ends.

    `--rank N` leaves only lines that name that rank, in the engine's words or in NCCL's.
    """
    told = re.fullmatch(r"(?P<follow>-f|--follow)?( ?--rank (?P<rank>[01]))?", " ".join(sorted(words, key=lambda word: word not in FOLLOW)))
    if told is None:
        raise Failure("E_CONFIG", found=f"logs {' '.join(words)}", needed="logs [-f] [--rank 0 or 1]")
    of_rank = re.compile(rf"\brank {told['rank']}\b|\[{told['rank']}\] NCCL" if told["rank"] else "")
    record = server.find(job.places)
    if record is None:
        newest = sorted(job.places.log_dir.glob("glm53-*.tar.gz"), key=lambda path: path.stat().st_mtime)
        found = f"no server runs; the newest archive is {newest[-1]}" if newest else "no server runs and there is no archive"
        raise Failure("E_LOG", found=found, needed="a running server", remedy="./start.sh, or tar -xzf the archive")
    shown = [line for line in runlog.tail(record.log, SHOWN if not told["rank"] else SEARCHED) if of_rank.search(line)]
    for line in shown[-SHOWN:]:
        job.ui.line(line)
    if told["follow"]:
        _follow(job, record, of_rank)
    return 0


def _follow(job: Job, record: server.Record, of_rank: re.Pattern[str]) -> None:
    with record.log.open("r", encoding="utf-8", errors="replace") as log:
        log.seek(0, 2)
        while server.is_alive(record):
            for line in filter(of_rank.search, log.read().splitlines()):
                job.ui.line(line)
            time.sleep(FOLLOW_EVERY_S)
