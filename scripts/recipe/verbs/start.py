"""start, restart, rollback, prepare and doctor: the six steps, re-attaching to what runs, and the way back when a new server fails."""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from failure import Failure
from patchwork import engine
from recipe import interrupts, launching, lock, plan, server
from recipe import record as records
from recipe.adapters import containers
from recipe.adapters.hub import is_complete, missing_bytes
from recipe.checks import auth
from recipe.checks.disk import Want
from recipe.environment import Environment
from recipe.job import Job
from recipe.plan import Step
from recipe.record import Launch, Record
from recipe.settings import EMBEDDED
from recipe.steps.checks import ChecksStep, licence_of
from recipe.steps.devices import DevicesStep
from recipe.steps.image import DockerImage, Image, ProcessImage
from recipe.steps.serve import ServeStep
from recipe.steps.smoke import SmokeStep
from recipe.steps.weights import DRAFTER, PublishedWeights, ShippedWeights, snapshots

STEPS = 6


def start(job: Job, words: Sequence[str]) -> int:
    """Serve, or re-attach to what serves already."""
    if job.config.is_on("DRY_RUN"):
        return _show(job, None)
    with lock.hold(job.places.state_dir, job.verb):
        running = _clear_up(job)
        return _reattach(job, running) if running is not None else _serve(job, None)


def restart(job: Job, words: Sequence[str]) -> int:
    """Prepare everything, then replace what serves."""
    if job.config.is_on("DRY_RUN"):
        return _show(job, server.find(job.places))
    with lock.hold(job.places.state_dir, job.verb):
        return _serve(job, _clear_up(job))


def prepare(job: Job, words: Sequence[str]) -> int:
    """The steps before the start."""
    preparation = _preparation(job, None, serves=False).steps
    if job.config.is_on("DRY_RUN"):
        job.ui.inform("I_DRY_RUN", "the plan of prepare")
        plan.show(preparation, job.ui)
        return 0
    with lock.hold(job.places.state_dir, job.verb):
        job.put_away_leftover()
        try:
            plan.carry_out(preparation, job.ui, first=1, total=len(preparation))
        finally:
            _put_away(job)
        job.ui.line("Prepared. ./start.sh serves.")
        return 0


def rollback(job: Job, words: Sequence[str]) -> int:
    """Serve the newest build that was live here and is not the one of the present files; no file is changed."""
    if job.config.is_on("DRY_RUN"):
        serve = ServeStep(job, _earlier(job), server.find(job.places))
        plan.show((serve, _smoke(job, serve)), job.ui)
        return 0
    with lock.hold(job.places.state_dir, job.verb):
        running, launch = _clear_up(job), _earlier(job)
        if running is not None and running.launch.build == launch.build:
            return _reattach(job, running)
        _replace(job, launch, running, first=1, total=2)
        return 0


def doctor(job: Job, words: Sequence[str]) -> int:
    """Every check of a start, and no start: nothing is made or changed. Exit status of the failure told last, or 0."""
    old, known = server.find(job.places), list[Failure]()
    try:
        old = old if old is not None and server.is_alive(old) else None
    except Failure as failure:
        old, known = None, [failure]
    try:
        checks = _preparation(job, old, serves=True).checks
    except Failure as failure:
        # The engine cannot be built from these files; everything else can be asked all the same.
        checks, known = checks_of(job, Environment("host", job), old, list, serves=True), [*known, failure]
    checks.ask_all(known)
    job.ui.line("Nothing stands in the way of a start.")
    return 0


def _present_build(job: Job) -> str:
    """The build that the present files and settings make; empty where they make none, which is a reason to go back, not an obstacle."""
    try:
        return _preparation(job, None, serves=False).launch.build
    except Failure:
        return ""


def _earlier(job: Job) -> Launch:
    present = _present_build(job)
    for launch in records.lived(job.places.state_dir):
        if launch.build != present:
            return launch
    raise Failure("E_ROLLBACK", found="no other build than the present one was live here", needed="an earlier build that was live")


@dataclass(frozen=True)
class Preparation:
    checks: ChecksStep
    steps: tuple[Step, ...]
    launch: Launch
    image: Image
    devices: DevicesStep


def _preparation(job: Job, old: Record | None, *, serves: bool) -> Preparation:
    """Steps 1 to 4 and the launch they make possible. Raises Failure E_PIN or E_PATCHES before anything is done."""
    config = job.config
    host_tools = Environment("host", job)
    pin = engine.resolve(config.root, config.text("ENGINE_REPO"), config.text("ENGINE_COMMIT"))
    weights = ShippedWeights(job) if config.text("PROFILE") == EMBEDDED else PublishedWeights(job, host_tools)
    if config.text("RUNTIME") == "docker":
        image: Image = DockerImage(job, pin, host_tools)
        python = None
        launch = launching.container_launch(config, image.digest, job.environment)
    else:
        image = built = ProcessImage(job, pin, host_tools)
        launch, python = launching.process_launch(config, image.digest, built.python, job.environment), built.python
    checks = checks_of(job, host_tools, old, lambda: _wants(job, image, host_tools), serves=serves)

    def work(words: Sequence[str]) -> Launch:
        return launching.work_launch(config, image.digest, python, words, job.environment)

    devices = DevicesStep(job, work, image.digest, served=old is not None and old.launch.uses_gpus)
    return Preparation(checks, (checks, image, weights, devices), launch, image, devices)


def checks_of(job: Job, host_tools: Environment, old: Record | None, wants: Callable[[], Sequence[Want]], *, serves: bool) -> ChecksStep:
    """Step 1 beside a server that runs, or none: what that one holds is free by the time it is needed."""
    config = job.config
    hosts = {config.text("HOST"), old.launch.host} if old is not None else set()
    # One address of a port is taken by whoever has all of them.
    replaces_own = old is not None and old.launch.port == config.number("PORT") and (len(hosts) == 1 or bool(hosts & {"0.0.0.0", "::"}))
    frees_gpus = old is not None and old.launch.uses_gpus

    def needs_licence() -> bool:
        is_wanted = config.text("PROFILE") != EMBEDDED and config.text("DRAFTER") == "dflash2" and not licence_of(job).exists()
        return is_wanted and not is_complete(config.folder(DRAFTER.place), DRAFTER.revision)

    return ChecksStep(job, host_tools, wants, replaces_own=replaces_own, serves=serves, frees_gpus=frees_gpus, needs_licence=needs_licence)


def _wants(job: Job, image: Image, host_tools: Environment) -> list[Want]:
    """Space for what is missing, and only for that."""
    config = job.config
    wants = []
    if not image.is_ready() or not host_tools.is_ready():
        place = containers.daemon(job.environment).storage if config.text("RUNTIME") == "docker" else str(job.data_dir)
        wants.append(Want("the engine", place, config.number("IMAGE_FREE_GIB")))
    if config.gpus() and not any((config.folder("KERNEL_CACHE") / image.digest).glob("*")):
        wants.append(Want("compiled kernels", config.text("KERNEL_CACHE"), config.number("KERNEL_FREE_GIB")))
    if config.text("PROFILE") != EMBEDDED:
        for snapshot in snapshots(config):
            if not is_complete(config.folder(snapshot.place), snapshot.revision):
                missing = missing_bytes(config.folder(snapshot.place), snapshot.revision)
                budget = config.number("MODEL_FREE_GIB" if snapshot.place == "MODEL_DIR" else "DFLASH2_FREE_GIB")
                gib = budget if missing is None else -(-missing // 2**30)
                wants.append(Want(snapshot.repository, config.text(snapshot.place), gib))
    return [want for want in wants if want.gib]


def _show(job: Job, old: Record | None) -> int:
    preparation = _preparation(job, old, serves=True)
    job.ui.inform("I_DRY_RUN", f"the plan of {job.verb}; a run skips what is ready")
    _headline(job)
    serve = ServeStep(job, preparation.devices.with_table(preparation.launch), old)
    plan.show((*preparation.steps, serve, _smoke(job, serve)), job.ui)
    return 0


def _headline(job: Job) -> None:
    shown = ", ".join(
        f"{name} {job.config.shown(name)}" for name in ("PROFILE", "RUNTIME", "GPUS", "CONTEXT", "PARALLEL", "DENSE", "KV", "DRAFTER")
    )
    job.ui.banner("GLM-5.3-Flash", f"{shown}, {job.config.text('HOST')} port {job.config.text('PORT')}")


def _smoke(job: Job, serve: ServeStep) -> SmokeStep:
    def record() -> Record:
        if serve.record is None:
            raise Failure("E_INTERNAL", found="no server was started", needed="the start before the wait")
        return serve.record

    return SmokeStep(job, serve.launch, record)


def _serve(job: Job, old: Record | None) -> int:
    _headline(job)
    try:
        preparation = _preparation(job, old, serves=True)
        plan.carry_out(preparation.steps, job.ui, first=1, total=STEPS)
    except BaseException:
        _put_away(job)
        raise
    _replace(job, preparation.devices.with_table(preparation.launch), old, first=5, total=STEPS)
    try:
        preparation.image.drop_others({one.build for one in records.lived(job.places.state_dir)})
    except (Failure, OSError) as fault:
        # The server is live all the same.
        job.ui.line(f"  older builds stay for now: {fault}")
    return 0


def _replace(job: Job, launch: Launch, old: Record | None, *, first: int, total: int) -> None:
    """Start `launch` in the place of `old` and remember it once it is live; `old` comes back where it fails."""
    serve = ServeStep(job, launch, old)
    try:
        plan.carry_out((serve, _smoke(job, serve)), job.ui, first=first, total=total)
    except Exception as fault:
        with interrupts.held_off():
            _abandon(job, serve)
            if old is not None and not server.is_alive(old):
                if isinstance(fault, Failure):
                    job.ui.failure(fault)
                _bring_back(job, old.launch)
                job.ui.inform("W_ROLLBACK", f"{old.launch.url} is served by the build and the settings of before")
        raise
    except BaseException as stop:
        with interrupts.held_off():
            _abandon(job, serve)
        if old is not None and serve.gives_way and isinstance(stop, interrupts.Interrupted) and stop.number != signal.SIGTERM:
            # Who takes a restart back, or loses the terminal, wants the server that there was; whoever ends programs does not.
            job.ui.line("  bringing the server of before back; interrupt again to leave it stopped")
            revive(job, old.launch)
        raise
    records.remember(job.places.state_dir, launch)


def _abandon(job: Job, serve: ServeStep) -> None:
    """End a server that did not come up and pack its logs. What cannot be done is told, and keeps nobody from going on."""
    try:
        if serve.record is None:
            _put_away(job)
            return
        packed = server.end(serve.record, job.places, job.config.number("STOP_TIMEOUT"))
        job.hand_over()
        if packed is not None:
            job.ui.inform("I_ARCHIVE", f"the log of the failed server: {packed}")
    except Failure as failure:
        job.ui.failure(failure)


def revive(job: Job, launch: Launch) -> int:
    """Clear away what is left of a server and start it again as it was. The lock is the caller's."""
    job.put_away_leftover()
    record = server.find(job.places)
    if record is not None:
        packed = server.end(record, job.places, job.config.number("STOP_TIMEOUT"))
        job.ui.inform("I_RECOVER", f"logs: {packed or 'none were left'}")
    _bring_back(job, launch)
    return 0


def _bring_back(job: Job, launch: Launch) -> None:
    """Start a server of before: its build, its settings, its port."""
    again = Job(job.config, job.environment, job.ui, job.verb)
    serve = ServeStep(again, launch, None)
    try:
        plan.carry_out((serve, _smoke(again, serve)), job.ui, first=5, total=STEPS)
    except BaseException:
        _abandon(again, serve)
        raise


def _put_away(job: Job) -> None:
    with interrupts.held_off():
        packed = job.put_away()
    if packed is not None and sys.exc_info()[0] is not None:
        job.ui.inform("I_ARCHIVE", f"the log so far: {packed}")


def _clear_up(job: Job) -> Record | None:
    """The server that runs well, or None after the remains of one that does not were archived."""
    job.put_away_leftover()
    record = server.find(job.places)
    if record is None:
        return None
    cause = "the server is gone"
    if server.is_alive(record):
        health = server.health(record)
        if health.state != "failed":
            return record
        cause = f"its engine failed: {health.cause}"
    packed = server.end(record, job.places, job.config.number("STOP_TIMEOUT"))
    job.ui.inform("I_RECOVER", f"{cause}; logs: {packed or 'none were left'}")
    return None


def _reattach(job: Job, running: Record) -> int:
    launch = running.launch
    job.ui.inform("I_RUNNING", f"{launch.url}, model {launch.name}; ./start.sh restart replaces it, ./stop.sh ends it")
    if launch.settings.get("AUTH") == "open":
        found = auth.opened(launch.host)
        job.ui.inform(found.code, found.found)
    for difference in launching.differences(launch, job.config):
        job.ui.inform("W_DIFFERS", difference)
    present = _present_build(job) if launch.settings.get("PROFILE") == job.config.text("PROFILE") else ""
    if present not in ("", launch.build):
        job.ui.inform("W_DIFFERS", f"the server runs build {launch.build}, the files here make {present}")
    plan.carry_out((SmokeStep(job, launch, lambda: running),), job.ui, first=STEPS, total=STEPS)
    return 0
