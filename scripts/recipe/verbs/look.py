"""status, config and logs: look, change nothing, take no lock."""

from collections.abc import Sequence

from failure import Failure
from recipe import launching, runlog, server
from recipe.config import look_alikes
from recipe.job import Job
from recipe.settings import GROUPS, SETTINGS

RUNS, STOPPED, UNWELL = 0, 3, 4
FOLLOW = ("-f", "--follow")
SHOWN = 40


def status(job: Job, words: Sequence[str]) -> int:
    """Exit status 0: it serves; 3: none runs; 4: it loads, or something of it died."""
    record = server.find(job.places)
    if record is None:
        _say(job, "stopped")
        job.ui.line("stopped: no server was started, or ./stop.sh ended it")
        return STOPPED
    launch = record.launch
    job.ui.line(
        f"server:   {launch.url}   model: {launch.name}   profile: {launch.settings.get('PROFILE', '?')}   runtime: {launch.runtime}"
    )
    job.ui.line(f"run:      {record.folder}")
    if not server.is_alive(record):
        _say(job, "dead", record)
        which = f"process {record.identity.pid}" if record.identity else f"container {launch.container}"
        last = runlog.tail(record.log, 1)
        job.ui.line(f"state:    dead: the server ({which}) ended without ./stop.sh")
        job.ui.line(f"last log: {last[0] if last else '(no line)'}")
        job.ui.line("do this:  ./start.sh archives its logs and starts again")
        return UNWELL
    health = server.health(record)
    _say(job, health.state, record)
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


def _say(job: Job, state: str, record: server.Record | None = None) -> None:
    """For programs: stopped, dead, or what the server says of itself: ready, loading, failed or silent."""
    if job.ui.is_json:
        told = {"url": record.launch.url, "model": record.launch.name, "run": str(record.folder)} if record else {}
        job.ui.say(state=state, **told)


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
    for text in (*(notice.text for notice in job.config.notices if notice.is_harmless), *look_alikes(job.environment)):
        job.ui.line(f"note: {text}")
    return 0


def logs(job: Job, words: Sequence[str]) -> int:
    """Last 40 lines of the running server's log, or with `--rank N` of that rank's; `-f` goes on until the server ends."""
    told = sorted(words, key=lambda word: word not in FOLLOW)
    follows = told[:1] != [] and told[0] in FOLLOW
    rank = {(): 0, ("--rank", "0"): 0, ("--rank", "1"): 1}.get(tuple(told[follows:]))
    if rank is None:
        raise Failure("E_CONFIG", found=f"logs {' '.join(words)}", needed="logs [-f] [--rank 0 or 1]")
    record = server.find(job.places)
    if record is None:
        newest = sorted(job.places.log_dir.glob("glm53-*.tar.gz"), key=lambda path: path.stat().st_mtime)
        found = f"no server runs; the newest archive is {newest[-1]}" if newest else "no server runs and there is no archive"
        raise Failure("E_LOG", found=found, needed="a running server", remedy="./start.sh, or tar -xzf the archive")
    try:
        for line in runlog.follow(record.log_of(rank), SHOWN, lambda: follows and job.ui.is_heard and server.is_alive(record)):
            job.ui.line(line)
    except OSError as error:
        needed = "a rank that has a log" if rank else "the log of the server"
        raise Failure("E_LOG", found=f"{record.log_of(rank)}: {error.strerror}", needed=needed, remedy="./start.sh status") from error
    return 0
