"""Step 1: is this host fit, and has the host side its own tools? Every finding is told; the first failure ends the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from recipe import files
from recipe.adapters import containers, host, kernel
from recipe.checks import Finding, bind, dependencies, disk, docker, gpu, platform, port, venv
from recipe.checks.disk import Want
from recipe.environment import Environment
from recipe.job import Job
from recipe.plan import Action, Task
from recipe.settings import EMBEDDED


@dataclass(frozen=True)
class Question:
    """`what` in words for the plan; `ask` gathers the facts and checks them."""

    what: str
    ask: Callable[[], Finding]


class ChecksStep:
    title = "Checks"

    def __init__(self, job: Job, host_tools: Environment, wants: Callable[[], Sequence[Want]], *, replaces_own: bool, serves: bool) -> None:
        self._job = job
        self._host_tools = host_tools
        self._wants = wants
        self._replaces_own = replaces_own
        self._serves = serves

    def is_ready(self) -> bool:
        """Never: the host may have changed since the last start."""
        return False

    def actions(self) -> Sequence[Action]:
        asking = Task(f"check {', '.join(question.what for question in self.questions())}", self._ask_all)
        return (asking, *self._tool_actions(files.shop_of(self._job.data_dir)))

    def run(self) -> None:
        self._ask_all()
        if not self._host_tools.is_ready():
            with files.workshop(self._job.data_dir) as shop:
                for action in self._tool_actions(shop):
                    action.run()
        self._host_tools.adopt()

    def _tool_actions(self, shop: Path) -> Sequence[Action]:
        facts = host.python(self._job.environment)
        install = []
        if not facts.has_ensurepip and facts.can_install:
            install = [self._job.command("E_VENV", "apt-get", "install", "--yes", "--no-install-recommends", f"python{facts.version}-venv")]
        return (*install, *self._host_tools.actions(shop))

    def questions(self) -> Sequence[Question]:
        """In the order in which they are asked and told."""
        config, environment = self._job.config, self._job.environment
        is_container = config.text("RUNTIME") == "docker"
        machines = ("x86_64", "aarch64") if config.text("PROFILE") == EMBEDDED else ("x86_64",)
        tools = ("bash", "git")
        listen = port.Listen(config.text("HOST"), config.number("PORT"), is_ours=self._replaces_own)
        asked = [
            Question("platform", lambda: platform.check(host.machine(), machines)),
            Question("GPUs", lambda: gpu.check(host.gpus(environment), config.gpus()) if config.gpus() else gpu.check(gpu.Gpus(()), ())),
            Question("tools", lambda: dependencies.check(host.tools(tools, environment), tools)),
            Question("Python environments", lambda: venv.check(host.python(environment))),
            Question("disk", self._disk),
        ]
        if is_container:
            asked.insert(3, Question("Docker", lambda: docker.check(containers.daemon(environment))))
        if self._serves:
            asked.append(Question("port", lambda: port.check(host.port(listen.host, listen.port), listen)))
            asked.append(Question("who can reach the API", lambda: bind.check(bind.Bind(listen.host, bool(config.text("API_KEY_FILE"))))))
        return asked

    def _disk(self) -> Finding:
        wants = tuple(self._wants())
        places = {want.place: kernel.filesystem(Path(want.place)) for want in wants}
        return disk.check(places, wants)

    def _ask_all(self) -> None:
        first: Failure | None = None
        for question in self.questions():
            finding = question.ask()
            if not finding.is_failure:
                self._job.ui.inform(finding.code, finding.found)
            elif first is None:
                first = finding.failure()
            else:
                self._job.ui.failure(finding.failure())
        if first is not None:
            raise first
