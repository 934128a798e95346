"""uninstall: removes what this installation made, after saying what and how large. Touches nothing that others put there."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from failure import Failure
from recipe import files, lock, runlog, server
from recipe.adapters import containers
from recipe.adapters.containers import DockerFault
from recipe.adapters.hub import MANIFEST
from recipe.environment import READY
from recipe.job import Job
from recipe.steps.image import BUILD_LABEL, ROOT_LABEL
from recipe.verbs import service

GIB = 1 << 30
# Names as this program, or the engine, gives them: folders of settings may hold anything else besides.
BUILD = r"[0-9a-f]{16}"
LOGS = rf"({runlog.NAME.pattern}|support-\d{{8}}T\d{{6}}Z-\d+)(\.tar\.gz)?|current"
STATE = "(api-key|lent-key|licence-dflash2.json|lived.json|lock|patches|server.json|unfinished.json|watch.json|watch-paused)"
SPILLED = r"rank\d+(-\d+\.kept.*|\.lock)|secret(\.part)?"


def uninstall(job: Job, words: Sequence[str]) -> int:
    """`uninstall [--yes]`. Raises Failure E_CONFIG where nobody says yes, E_STOP where a server runs."""
    if list(words) not in ([], ["--yes"]):
        raise Failure("E_CONFIG", found=f"uninstall {' '.join(words)}", needed="uninstall or uninstall --yes")
    is_shown = job.config.is_on("DRY_RUN")
    with contextlib.nullcontext() if is_shown else lock.hold(job.places.state_dir, job.verb):
        if server.find(job.places) is not None:
            raise Failure("E_STOP", found="a server of this installation runs, or died unattended", needed="none", remedy="./stop.sh")
        places = list(_places(job))
        for place in places:
            job.ui.line(f"  {_bytes(place) / GIB:8.2f} GiB  {place}")
        job.ui.line("  and the engine's images in Docker; your settings, this folder and weights elsewhere stay")
        if is_shown:
            job.ui.inform("I_DRY_RUN", "the plan of uninstall")
            return 0
        if "--yes" not in words and (job.ui.ask("Remove all of this? yes or no: ") or "").strip() != "yes":
            raise Failure("E_CONFIG", found="no yes", needed="yes on the terminal, or --yes")
        try:
            containers.drop_images(BUILD_LABEL, (), f"{ROOT_LABEL}={job.config.root}")
        except DockerFault as fault:
            job.ui.line(f"  no image was removed: {fault}")
        for place in places:
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    for folder in dict.fromkeys([*(place.parent for place in places), job.data_dir / "unfinished", job.data_dir]):
        with contextlib.suppress(OSError):
            # One that holds something else stays.
            folder.rmdir()
    job.ui.inform("I_CLEANED", f"{len(places)} places")
    return 0


def _places(job: Job) -> Iterator[Path]:
    """What is there of it. Another clone's builds keep the environments and wheels that they share with this one's."""
    config, data = job.config, job.data_dir
    builds = {place: (files.read_json(place / READY) or {}).get("root") for place in _named(data / "engines", BUILD)}
    others = {root for root in builds.values() if root not in (None, str(config.root)) and Path(root).exists()}
    yield from (place for place, root in builds.items() if root not in others)
    if others:
        job.ui.line(f"  what is shared in {data} stays: {', '.join(sorted(others))} uses it")
    else:
        yield from (*_named(data / "environments", rf"(host|engine-\w+)-{BUILD}"), *_named(data / "unfinished", r"\d+-\d+"))
        yield from (*_named(data / "wheels", BUILD), *_named(config.folder("KERNEL_CACHE"), BUILD))
        yield from (place for place in _named(data / "models", ".+") if (place / MANIFEST).exists())
    yield from _named(config.folder("SPILL_DIR"), SPILLED)
    yield from _named(job.places.log_dir, LOGS)
    yield from _named(job.places.state_dir, rf"{STATE}|\.{STATE}\.\d+")
    yield from service.installed(job)


def _named(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob("*") if re.fullmatch(pattern, path.name))


def _bytes(place: Path) -> int:
    """What it takes on disk, links not followed."""
    if not place.is_dir() or place.is_symlink():
        return place.lstat().st_size
    return sum(os.lstat(Path(folder, name)).st_size for folder, _, names in os.walk(place) for name in names)
