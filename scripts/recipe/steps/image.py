"""Step 2: build the engine from the pinned tree and the patch series, as an environment of this host or as a container image."""

import contextlib
import os
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from failure import Failure
from patchwork import patchset
from patchwork.engine import Pin
from recipe import files, pytorch
from recipe.adapters import containers
from recipe.adapters.containers import DockerFault
from recipe.environment import ONLY_LOCKED, PIP, READY, Environment, into, python_tag
from recipe.job import Job
from recipe.plan import Act, Action, Task

BUILD_LABEL, ROOT_LABEL = "recipe.build", "recipe.root"
DOCKER_FILES = ("Dockerfile", "entrypoint.py")
LIST = "engine.lock"
NO_NET = ("--no-deps", "--no-index")
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
TORCH = "from importlib import metadata; print(*(one.version for one in metadata.distributions(name='torch')))"


class Image(ABC):
    """A build by content: `digest` names everything that decides it. It is made in a folder that goes away."""

    title: str
    digest: str
    _job: Job

    @abstractmethod
    def is_ready(self) -> bool: ...

    @abstractmethod
    def drop_others(self, keep: Collection[str]) -> None:
        """Remove this clone's builds that have no digest of `keep`."""

    @abstractmethod
    def _actions(self, shop: Path) -> Sequence[Action]: ...

    def actions(self) -> Sequence[Action]:
        return self._actions(files.shop_of(self._job.data_dir))

    def run(self) -> None:
        with files.workshop(self._job.data_dir) as shop:
            for action in self._actions(shop):
                action.run()
        self._job.ui.settle()


def wheel_actions(job: Job, pin: Pin, host_tools: Environment, shop: Path, place: Path) -> Sequence[Action]:
    """Export the pinned engine, apply the patches, make its wheel in `place`."""
    source = shop / "source"
    argv = (str(host_tools.python), "-m", "pip", "wheel", *NO_NET, "--no-build-isolation", "--wheel-dir", str(place), str(source))
    return (*patchset.actions(pin, source), job.command("E_IMAGE", *argv))


class ProcessImage(Image):
    """The engine's wheel in a small environment of its own, on top of the shared one with its dependencies.

    Other builds stay beside it, each a few megabytes, until nothing can go back to them.
    """

    title = "Image: the engine as an environment of this host"

    def __init__(self, job: Job, pin: Pin, host_tools: Environment) -> None:
        self._job = job
        self._pin = pin
        self._host_tools = host_tools
        is_own = job.config.gpus() and job.config.text("TORCH") == "base"
        self._torch = pytorch.own() if is_own else None
        self._base = Environment("engine-cuda" if job.config.gpus() else "engine-cpu", job, self._torch)
        self.digest = files.digest("process", patchset.digest(pin), self._base.digest, python_tag())
        self.place = job.data_dir / "engines" / self.digest

    @property
    def python(self) -> Path:
        return self.place / "bin" / "python"

    def is_ready(self) -> bool:
        told = files.read_json(self.place / READY)
        return told is not None and told.get("digest") == self.digest and self.python.exists() and self._base.is_ready()

    def _actions(self, shop: Path) -> Sequence[Action]:
        job, made, wheel = self._job, shop / "engine", shop / "wheel"
        base_python = str(self._base.python)
        pip = (base_python, "-m", "pip", "--python", str(made / "bin" / "python"))
        base = () if self._base.is_ready() else self._base.actions(shop)
        return (
            *base,
            *wheel_actions(job, self._pin, self._host_tools, shop, wheel),
            job.command("E_VENV", base_python, "-m", "venv", "--without-pip", str(made)),
            job.command("E_IMAGE", *pip, "install", *NO_NET, *into(made), "--find-links", str(wheel), "lockstep"),
            Task(f"let {made} see {self._base.packages}, mark it ready, then rename it to {self.place}", lambda: self._finish(made)),
        )

    def _finish(self, made: Path) -> None:
        inside = made / self._base.packages.relative_to(self._base.place)
        # What the own list has comes before what that Python has.
        seen = [str(self._base.packages), *([self._torch.folder] if self._torch else [])]
        (inside / "dependencies.pth").write_text("".join(f"{folder}\n" for folder in seen))
        root = str(self._job.config.root)
        files.write_json(made / READY, {"digest": self.digest, "tree": self._pin.tree_id, "root": root})
        files.put_in_place(made, self.place, is_there=self.is_ready())

    def drop_others(self, keep: Collection[str]) -> None:
        for place in self.place.parent.iterdir():
            told = files.read_json(place / READY) or {}
            if told.get("root") == str(self._job.config.root) and told.get("digest") not in keep:
                shutil.rmtree(place)
                self._job.ui.inform("I_CLEANED", str(place))


class DockerImage(Image):
    """The engine as a container image, tagged with the digest; its wheels are fetched here, so that the build needs no network."""

    title = "Image: the engine as a container image"

    def __init__(self, job: Job, pin: Pin, host_tools: Environment) -> None:
        self._job = job
        self._pin = pin
        self._host_tools = host_tools
        self._base = job.config.text("BASE_IMAGE")
        root = job.config.root
        self._lock = root / "requirements" / f"engine-{'cuda' if job.config.gpus() else 'cpu'}.lock"
        self._recipe = tuple(root / "docker" / name for name in DOCKER_FILES)
        self._torch = job.config.text("TORCH")
        self._wheels = files.digest(self._lock.read_bytes(), self._base, self._torch)
        self.digest = files.digest("docker", patchset.digest(pin), self._wheels, *(path.read_bytes() for path in self._recipe))
        self.tag = f"{job.config.text('IMAGE')}:{self.digest}"

    def is_ready(self) -> bool:
        try:
            return (containers.image_labels(self.tag) or {}).get(BUILD_LABEL) == self.digest
        except DockerFault:
            # Before the first step there may be no SDK yet; a daemon that stays silent is told by the work that needs it.
            return False

    def drop_others(self, keep: Collection[str]) -> None:
        with self._faults():
            gone = containers.drop_images(BUILD_LABEL, keep, f"{ROOT_LABEL}={self._job.config.root}")
        if gone:
            self._job.ui.inform("I_CLEANED", ", ".join(gone))

    def _actions(self, shop: Path) -> Sequence[Action]:
        context, cache = shop / "context", self._job.data_dir / "wheels" / self._wheels
        asking = ("docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", self._base, "-c")
        fetching = f'{shlex.join(self._pip(shop))} --python-version "$({shlex.join([*asking, VERSION])})"'
        least = ".".join(map(str, pytorch.LEAST))
        unless = f", without torch and what only torch needs if this says {least} or later: {shlex.join([*asking, TORCH])}"
        listing = f"put {self._lock} into {shop / 'wheels'}{unless if self._torch == 'base' else ''}"
        words = ["--build-arg", f"BASE_IMAGE={self._base}"]
        words += ["--label", f"{BUILD_LABEL}={self.digest}", "--label", f"{ROOT_LABEL}={self._job.config.root}"]
        return (
            Act(f"docker pull {self._base}", self._pull),
            *(() if cache.is_dir() else (Task(listing, lambda: self._list(shop)), Act(fetching, lambda: self._fetch(shop, cache)))),
            *wheel_actions(self._job, self._pin, self._host_tools, shop, context / "engine"),
            Task(f"put {cache} and docker/ into {context}", lambda: self._fill(context, cache)),
            Act(
                shlex.join(["docker", "build", "--network", "none", *words, "--tag", self.tag, str(context)]), lambda: self._build(context)
            ),
        )

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except DockerFault as error:
            raise Failure("E_IMAGE", found=f"{self.tag}: {error}", needed="an image that is built and starts") from error

    def _pull(self) -> None:
        with self._faults():
            if containers.image_labels(self._base) is None:
                self._job.need_network(f"docker pull {self._base}")
            containers.fetch(self._base, self._job.note)

    def _pip(self, shop: Path) -> tuple[str, ...]:
        where = ("--dest", str(shop / "wheels"), "--requirement", str(shop / "wheels" / LIST))
        return (str(self._host_tools.python), *PIP, "download", *ONLY_LOCKED, *where)

    def _list(self, shop: Path) -> None:
        """Write what has to be fetched: everything, or all but torch where the base brings one that is recent enough."""
        text = self._lock.read_text(encoding="utf-8")
        if self._torch == "base":
            with self._faults():
                version = containers.ask(self._base, "python3", "-c", TORCH)
            if pytorch.is_recent(version):
                text = pytorch.left_out(text, keeps_compiler=True)
                self._job.note(f"the base's PyTorch {version} is used")
            else:
                self._job.note(f"the base brings {f'PyTorch {version}' if version else 'no PyTorch'}: {self._lock.name}'s is fetched")
        (shop / "wheels").mkdir()
        (shop / "wheels" / LIST).write_text(text, encoding="utf-8")

    def _fetch(self, shop: Path, cache: Path) -> None:
        with self._faults():
            version = containers.ask(self._base, "python3", "-c", VERSION)
        self._job.command("E_IMAGE", *self._pip(shop), "--python-version", version, fetches=True).run()
        files.put_in_place(shop / "wheels", cache, is_there=cache.is_dir())

    def _fill(self, context: Path, cache: Path) -> None:
        shutil.copytree(cache, context / "wheels", copy_function=os.link)
        for path in self._recipe:
            # The server's user reads it, whatever this user's umask made of the clone.
            shutil.copyfile(path, context / path.name)
            (context / path.name).chmod(0o644)

    def _build(self, context: Path) -> None:
        labels = {BUILD_LABEL: self.digest, ROOT_LABEL: str(self._job.config.root)}
        with self._faults():
            containers.build(context, self.tag, {"BASE_IMAGE": self._base}, labels, self._job.note)
