"""uninstall: removes what this installation made, after saying what and how large. Touches nothing that others put there."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from failure import Failure
from recipe import lock, server
from recipe.adapters import containers
from recipe.adapters.containers import DockerFault
from recipe.job import Job
from recipe.steps.image import BUILD_LABEL, ROOT_LABEL

GIB = 1 << 30
# Folders of DATA_DIR that the steps make; anything else there is somebody else's.
MADE = ("environments", "engines", "wheels", "models", "kernels", "spill", "unfinished")


def uninstall(job: Job, words: Sequence[str]) -> int:
    """`uninstall [--yes]`. Raises Failure E_CONFIG where nobody says yes, E_STOP where a server runs."""
    if list(words) not in ([], ["--yes"]):
        raise Failure("E_CONFIG", found=f"uninstall {' '.join(words)}", needed="uninstall or uninstall --yes")
    with lock.hold(job.places.state_dir, job.verb):
        if server.find(job.places) is not None:
            raise Failure("E_STOP", found="a server of this installation runs, or died unattended", needed="none", remedy="./stop.sh")
        places = [place for place in _places(job) if place.exists()]
        for place in places:
            job.ui.line(f"  {_bytes(place) / GIB:8.2f} GiB  {place}")
        job.ui.line("  and the engine's images in Docker; your settings, this folder and weights elsewhere stay")
        if "--yes" not in words and (job.ui.ask("Remove all of this? yes or no: ") or "").strip() != "yes":
            raise Failure("E_CONFIG", found="no yes", needed="yes on the terminal, or --yes")
        try:
            containers.drop_images(BUILD_LABEL, (), f"{ROOT_LABEL}={job.config.root}")
        except DockerFault as fault:
            job.ui.line(f"  no image was removed: {fault}")
        for place in places:
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    job.ui.inform("I_CLEANED", f"{len(places)} places")
    return 0


def _places(job: Job) -> list[Path]:
    log_dir = job.places.log_dir
    logs = [path for pattern in ("glm53-*", "support-*.tar.gz", "current") for path in log_dir.glob(pattern)]
    return [*(job.data_dir / name for name in MADE), job.config.folder("KERNEL_CACHE"), *logs, job.places.state_dir]


def _bytes(place: Path) -> int:
    """What it takes on disk, links not followed."""
    if not place.is_dir() or place.is_symlink():
        return place.lstat().st_size
    return sum(os.lstat(Path(folder, name)).st_size for folder, _, names in os.walk(place) for name in names)
