"""Step 1: is this host fit, and has the host side its own tools? Every finding is told; the first failure ends the start."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from recipe import files, secrets, server
from recipe.adapters import containers, host, kernel
from recipe.checks import Finding, auth, dependencies, disk, docker, gpu, places, platform, port, venv
from recipe.checks.disk import Want
from recipe.codes import CODES
from recipe.environment import Environment
from recipe.job import Job
from recipe.plan import Action, Task
from recipe.settings import EMBEDDED

LISTED = "3.11"  # the Python of requirements/engine-cpu.lock, docs/decisions/0002
TOOLS = ("bash", "git")
WRITTEN = ("STATE_DIR", "DATA_DIR", "LOG_DIR")
POLL_S = 1.0


@dataclass(frozen=True)
class Question:
    """`what` in words for the plan; `ask` gathers the facts and checks them."""

    what: str
    ask: Callable[[], Iterable[Finding]]


@dataclass
class ChecksStep:
    """`replaces_own`: the server that holds the port gives it up; `frees_gpus`: the one that uses the GPUs does."""

    title = "Checks"
    job: Job
    host_tools: Environment
    wants: Callable[[], Sequence[Want]]
    replaces_own: bool
    serves: bool
    frees_gpus: bool = False
    needs_licence: Callable[[], bool] = lambda: False

    def is_ready(self) -> bool:
        """Never: the host may have changed since the last start."""
        return False

    def actions(self) -> Sequence[Action]:
        asking = Task(f"check {', '.join(question.what for question in self.questions())}", self.ask_all)
        key = [Task(f"make {self._key_file} with a random key, readable by its owner only", self._make_key)] if self._lacks_key() else []
        return (asking, *key, *self._tool_actions(files.shop_of(self.job.data_dir)))

    def run(self) -> None:
        self.ask_all()
        if self.needs_licence():
            self._ask_licence()
        if self._lacks_key():
            self._make_key()
        if not self.host_tools.is_ready():
            with files.workshop(self.job.data_dir) as shop:
                for action in self._tool_actions(shop):
                    action.run()
        self.host_tools.adopt()

    def _tool_actions(self, shop: Path) -> Sequence[Action]:
        facts = host.python(self.job.environment)
        install = []
        if not facts.has_ensurepip and facts.can_install:
            install = [
                self.job.command(
                    "E_VENV", "apt-get", "install", "--yes", "--no-install-recommends", f"python{facts.version}-venv", fetches=True
                )
            ]
        return (*install, *self.host_tools.actions(shop))

    def questions(self) -> Sequence[Question]:
        """In the order in which they are asked and told."""
        config, environment = self.job.config, self.job.environment
        machines = ("x86_64", "aarch64") if config.text("PROFILE") == EMBEDDED else ("x86_64",)
        listen = port.Listen(config.text("HOST"), config.number("PORT"), is_ours=self.replaces_own)
        is_container, has_gpus = config.text("RUNTIME") == "docker", bool(config.gpus())
        asked = [
            (True, "platform", lambda: [platform.check(host.machine(), machines)]),
            (True, "tools", lambda: [dependencies.check(host.tools(TOOLS, environment), TOOLS)]),
            (True, "Python environments", lambda: [venv.check(host.python(environment), "" if is_container or has_gpus else LISTED)]),
            (is_container, "Docker", self._docker),
            (is_container and has_gpus, "GPUs in containers", self._runtime),
            (True, "GPUs", self._gpus),
            (True, "folders", self._places),
            (True, "disk", lambda: [self._disk()]),
            (config.text("PROFILE") != EMBEDDED, "hub token", self._token),
            (self.serves, "port", lambda: [port.check(host.port(listen.host, listen.port), listen)]),
            (self.serves, "who can use the API", lambda: auth.check(self._auth())),
            (True, "the drafter's licence", lambda: [Finding("W_LICENSE", CODES["W_LICENSE"].meaning)] if self.needs_licence() else []),
        ]
        return [Question(what, ask) for is_asked, what, ask in asked if is_asked]

    @functools.cached_property
    def _facts(self) -> gpu.Gpus:
        """Asked once: a driver that is not kept loaded takes seconds for each question."""
        return host.gpus(self.job.environment)

    def _docker(self) -> Iterator[Finding]:
        name, own = self.job.config.text("CONTAINER_NAME"), server.find(self.job.places)
        yield (found := docker.check(containers.daemon(self.job.environment)))
        if self.serves and not found.is_failure:
            holder = containers.holder(self.job.environment, name, str(own.folder) if own else "")
            remedy = f"docker rm --force {name}, if nobody needs it, or choose another CONTAINER_NAME"
            yield from [Finding("E_CONFIG", f"CONTAINER_NAME is taken: {holder}", "a name that is free", remedy)] if holder else []

    def _runtime(self) -> Iterator[Finding]:
        ids = [one.uuid for one in self._facts.chosen(self.job.config.gpus())]
        if ids and not docker.check(containers.daemon(self.job.environment)).is_failure:
            problem = containers.gpu_problem(self.job.environment, ids)
            found = Finding("E_NVIDIA_RUNTIME", problem, "a container with the GPUs in it")
            yield found if problem else Finding("I_NVIDIA_RUNTIME", f"a container was given {', '.join(ids)}")

    def _gpus(self) -> Iterator[Finding]:
        config, need = self.job.config, self.job.config.gpus()
        facts, ranks = self._facts if need else gpu.Gpus(()), config.number("RANKS")
        if need and ranks > len(need):
            yield Finding("E_GPU", f"RANKS={ranks} and GPUS={','.join(need)}", "a GPU for each rank", "name as many GPUS, or set RANKS=1")
            return
        yield (found := gpu.check(facts, need))
        if need and not found.is_failure:
            taken = None if self.frees_gpus else wait_for_gpus(self.job, facts)
            yield from [taken] if taken else []
            yield from gpu.state(facts.chosen(need), config.number("MAX_GPU_CELSIUS"))
            yield from gpu.links(facts, facts.chosen(need))

    def _places(self) -> Iterator[Finding]:
        config = self.job.config
        written = [*WRITTEN, *(["KERNEL_CACHE"] if config.gpus() else []), *(["SPILL_DIR"] if config.number("SPILL_GIB") else [])]
        need = {name: config.folder(name) for name in written}
        there = {name: kernel.filesystem(at) for name, at in need.items()}
        return places.check(
            {name: places.Place(at, kernel.closed(at), there[name].free_bytes, there[name].free_files) for name, at in need.items()}
        )

    def _disk(self) -> Finding:
        wants = tuple(self.wants())
        places = {want.place: kernel.filesystem(Path(want.place)) for want in wants}
        return disk.check(places, wants)

    def _token(self) -> Iterator[Finding]:
        yield Finding("I_HF_TOKEN", "set" if secrets.hub_token(self.job.config) else "not set")

    @property
    def _key_file(self) -> Path:
        return self.job.config.folder("API_KEY_FILE")

    def _auth(self) -> auth.Auth:
        config, problem = self.job.config, ""
        try:
            problem = "" if secrets.keys(self._key_file) else "there is no key in it"
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", "") or str(error)
        has_file, readable = self._key_file.exists(), tuple(secrets.open_files(config))
        return auth.Auth(config.text("AUTH"), config.text("HOST"), self._key_file, has_file, problem, readable)

    def _lacks_key(self) -> bool:
        return self.serves and self.job.config.text("AUTH") != "open" and not self._key_file.exists()

    def _make_key(self) -> None:
        secrets.make_key(self._key_file)
        self.job.ui.inform("I_KEY", str(self._key_file))

    def _ask_licence(self) -> None:
        place = licence_of(self.job)
        answer = self.job.ui.ask("Do you accept its terms? yes or no: ")
        if answer is None:
            return
        if answer.strip().lower() not in ("yes", "y"):
            raise Failure("E_LICENSE", found=f"the answer {answer.strip()!r}", needed="yes")
        files.write_json(place, {"accepted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    def ask_all(self, known: Sequence[Failure] = ()) -> None:
        """Tell every finding, and what is `known` to fail. Raises the Failure that matters most, told last."""
        failed = list(known)
        for question in self.questions():
            for finding in question.ask():
                if finding.is_failure:
                    failed.append(finding.failure())
                else:
                    self.job.ui.inform(finding.code, finding.found)
        # Without its GPUs this profile is the wrong one, whatever else is missing.
        failed.sort(key=lambda failure: failure.code == "E_GPU", reverse=True)
        for failure in failed[1:]:
            self.job.ui.failure(failure)
        if failed:
            raise failed[0]


def licence_of(job: Job) -> Path:
    """The file that says that the drafter's licence was accepted."""
    return job.config.folder("STATE_DIR") / "licence-dflash2.json"


def wait_for_gpus(job: Job, facts: gpu.Gpus | None = None) -> Finding | None:
    """Wait until the GPUs are as free as they have to be: an ended program's memory comes back late. Returns what is still wrong then.

    `facts` are those of the first look.
    """
    config = job.config
    until = time.monotonic() + config.number("GPU_WAIT_TIMEOUT")
    while True:
        chosen = (facts or host.gpus(job.environment)).chosen(config.gpus())
        facts = None
        found = gpu.room(chosen, config.number("MIN_GPU_FREE_MIB"))
        if found is None or any(one.programs for one in chosen) or time.monotonic() > until:
            return found
        job.ui.progress(f"waiting for GPU memory: {found.found}")
        time.sleep(POLL_S)
