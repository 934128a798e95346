"""Step 2: build the engine from the pinned tree and the patch series, as an environment of this host or as a container image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from recipe import files, patchset
from recipe.adapters import process
from recipe.engine_pin import Pin
from recipe.environment import READY, Environment, python_tag
from recipe.job import Job
from recipe.plan import Action, Task

DOCKER_ANSWER_S = 20.0
BUILD_LABEL = "recipe.build"
DOCKER_FILES = ("docker/Dockerfile", "requirements/engine-cuda.lock")


class Image(Protocol):
    """A build by content: `digest` names everything that decides it."""

    title: str
    digest: str

    def is_ready(self) -> bool: ...

    def actions(self) -> Sequence[Action]: ...

    def run(self) -> None: ...


class ProcessImage:
    """The engine's wheel in a small environment of its own, on top of the shared one with its dependencies.

    Builds of older patches stay beside it, each a few megabytes, so that a running server's own build is never replaced under it.
    """

    title = "Image: the engine as an environment of this host"

    def __init__(self, job: Job, pin: Pin, host_tools: Environment) -> None:
        self._job = job
        self._pin = pin
        self._host_tools = host_tools
        self._base = Environment("engine-cpu", job)
        self.digest = files.digest("process", patchset.digest(pin), self._base.digest, python_tag())
        self.place = job.data_dir / "engines" / self.digest

    @property
    def python(self) -> Path:
        return self.place / "bin" / "python"

    def is_ready(self) -> bool:
        told = files.read_json(self.place / READY)
        return told is not None and told.get("digest") == self.digest and self.python.exists() and self._base.is_ready()

    def actions(self) -> Sequence[Action]:
        return self._actions(files.shop_of(self._job.data_dir))

    def run(self) -> None:
        with files.workshop(self._job.data_dir) as shop:
            for action in self._actions(shop):
                action.run()

    def _actions(self, shop: Path) -> Sequence[Action]:
        job, made, wheel = self._job, shop / "engine", shop / "wheel"
        source, host_python, base_python = shop / "source", str(self._host_tools.python), str(self._base.python)
        no_net = ("--no-deps", "--no-index")
        base = () if self._base.is_ready() else self._base.actions(shop)
        return (
            *base,
            *patchset.actions(self._pin, source),
            job.command(
                "E_IMAGE", host_python, "-m", "pip", "wheel", *no_net, "--no-build-isolation", "--wheel-dir", str(wheel), str(source)
            ),
            job.command("E_VENV", base_python, "-m", "venv", "--without-pip", str(made)),
            job.command(
                "E_IMAGE",
                base_python,
                "-m",
                "pip",
                "--python",
                str(made / "bin" / "python"),
                "install",
                *no_net,
                "--find-links",
                str(wheel),
                "lockstep",
            ),
            Task(f"let {made} see {self._base.packages}, mark it ready, then rename it to {self.place}", lambda: self._finish(made)),
        )

    def _finish(self, made: Path) -> None:
        inside = made / self._base.packages.relative_to(self._base.place)
        (inside / "dependencies.pth").write_text(f"{self._base.packages}\n")
        files.write_json(made / READY, {"digest": self.digest, "tree": self._pin.tree_id})
        files.put_in_place(made, self.place)


class DockerImage:
    """The engine as a container image; its label carries the digest."""

    title = "Image: the engine as a container image"

    def __init__(self, job: Job, pin: Pin) -> None:
        self._job = job
        self._pin = pin
        contents = [(job.config.root / name).read_bytes() for name in DOCKER_FILES]
        self.digest = files.digest("docker", patchset.digest(pin), *contents, job.config.text("BASE_IMAGE"))

    def is_ready(self) -> bool:
        shown = '{{index .Config.Labels "' + BUILD_LABEL + '"}}'
        asked = ["docker", "image", "inspect", "--format", shown, self._job.config.text("IMAGE")]
        done = process.ask(asked, self._job.tool_environment, timeout_s=DOCKER_ANSWER_S)
        return done.status == 0 and done.output.strip() == self.digest

    def actions(self) -> Sequence[Action]:
        return self._actions(files.shop_of(self._job.data_dir))

    def run(self) -> None:
        with files.workshop(self._job.data_dir) as shop:
            for action in self._actions(shop):
                action.run()

    def _actions(self, shop: Path) -> Sequence[Action]:
        job, context, root = self._job, shop / "context", self._job.config.root
        label, base = f"{BUILD_LABEL}={self.digest}", f"BASE_IMAGE={job.config.text('BASE_IMAGE')}"
        return (
            *patchset.actions(self._pin, context / "engine"),
            job.command("E_IMAGE", "cp", *(str(root / name) for name in DOCKER_FILES), str(context)),
            job.command(
                "E_IMAGE", "docker", "build", "--build-arg", base, "--label", label, "--tag", job.config.text("IMAGE"), str(context)
            ),
        )
