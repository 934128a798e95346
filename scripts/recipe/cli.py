"""Command line of the host side: one verb, settings, then the verb's own module. Turns failures into texts and exit statuses."""

import errno
import importlib
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from failure import Failure
from recipe import config, interrupts
from recipe.adapters import kernel
from recipe.codes import CODES
from recipe.environment import Environment
from recipe.interrupts import Interrupted
from recipe.job import Job
from recipe.ui import Ui

ROOT = Path(__file__).resolve().parents[2]
SIGNAL_BASE = 128
JSON_OF_THEIR_OWN = ("patches", "verify")
WITHOUT_PLAN = ("install-service", "patches", "watch", "support-bundle", "documents")
HELP = ("help", "-h", "--help")
FULL, CLOSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), (errno.EACCES, errno.EPERM, errno.EROFS)
Run = Callable[[Job, Sequence[str]], int]


@dataclass(frozen=True)
class Verb:
    """`place` is module and function below this package, imported when the verb is asked for, so that a quick verb stays quick."""

    help: str
    place: str
    takes_words: bool = False

    def load(self) -> Run:
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(f"recipe.{module}"), name)


VERBS: dict[str, Verb] = {
    "start": Verb("serve, or re-attach to the server that runs", "verbs.start:start"),
    "restart": Verb("prepare everything, then replace the running server", "verbs.start:restart"),
    "rollback": Verb("serve the last build that was live before the present one", "verbs.start:rollback"),
    "stop": Verb("let the server finish, end it, pack its logs", "verbs.stop:stop"),
    "prepare": Verb("build and fetch everything, do not serve", "verbs.start:prepare"),
    "doctor": Verb("ask every check of a start, and start nothing", "verbs.start:doctor"),
    "status": Verb("say what runs and how it is; exit status 0 only if it serves", "verbs.look:status"),
    "config": Verb("show every setting and where it comes from", "verbs.look:config"),
    "logs": Verb("show the end of the server's log; -f follows it, --rank 1 is the other rank's", "verbs.look:logs", takes_words=True),
    "patches": Verb("list, verify, edit, refresh or pin the patch series", "verbs.patches:patches", takes_words=True),
    "verify": Verb("ask a running server: quality, gate, gatelong, reuse or ranks, each with --help", "verbs.verify:verify", True),
    "install-service": Verb("write systemd units, or into FOLDER: serve at boot, restart what dies", "verbs.service:install_service", True),
    "watch": Verb("look once, as the watchdog does; pause and resume say whether it looks", "verbs.service:watch", takes_words=True),
    "support-bundle": Verb("put logs, settings and findings into one archive, without secrets", "verbs.bundle:support_bundle"),
    "uninstall": Verb("remove what this installation made; says how large it is and asks, or --yes", "verbs.uninstall:uninstall", True),
    "completion": Verb("print the completion for Bash: source <(./start.sh completion)", "cli:completion"),
    "documents": Verb("write the files that are generated from the registries", "documents:write"),
}


def usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "Usage: ./start.sh [VERB]     (no verb: start)",
            "",
            *lines,
            f"  {'help':<{width}}  this text",
            "",
            "DRY_RUN=1 shows what start would do. --json tells everything as JSON, one object a line.",
        ]
    )


def completion(job: Job, words: Sequence[str]) -> int:
    """A function of Bash that completes the verbs."""
    job.ui.line(f"""_glm_start() {{
  ((COMP_CWORD == 1)) && mapfile -t COMPREPLY < <(compgen -W '{" ".join([*VERBS, "help", "--json"])}' -- "${{COMP_WORDS[1]}}")
}}
complete -o default -F _glm_start start.sh ./start.sh""")
    return 0


def main(arguments: Sequence[str], environment: Mapping[str, str] | None = None, root: Path = ROOT) -> int:
    """Run one verb; returns the exit status. Prints every failure as code, found, needed, do this."""
    environment = os.environ if environment is None else environment
    ui = Ui(environment)
    interrupts.listen()
    try:
        return _run(arguments, environment, root, ui)
    except Failure as failure:
        ui.failure(failure)
        return CODES[failure.code].status if failure.code in CODES else CODES["E_INTERNAL"].status
    except Interrupted as stop:
        ui.failure(Failure("E_INTERRUPTED", found=str(stop), needed="time to finish"))
        return SIGNAL_BASE + stop.number
    except Exception as error:
        failure = _explained(error)
        ui.failure(failure)
        return CODES[failure.code].status


def _explained(error: Exception) -> Failure:
    """What the host is to blame for has a code of its own."""
    if isinstance(error, OSError) and error.errno in FULL:
        return Failure("E_DISK", found=f"{error.filename or _place_of(error)}: {error.strerror}", needed="some space there")
    if isinstance(error, OSError) and error.errno in CLOSED and error.filename:
        needed, remedy = f"a file that {kernel.user()} may use", "call as its owner, or let that one give it to you: chown -R"
        remedy = "mount its filesystem to be written to again" if error.errno == errno.EROFS else remedy
        return Failure("E_CONFIG", found=f"{error.filename}: {error.strerror}", needed=needed, remedy=remedy)
    return Failure("E_INTERNAL", found=_place_of(error), needed="no fault of this program")


def _place_of(error: Exception) -> str:
    """Kind, text and place of a fault, on one line; settings may be in a traceback, so it is not shown whole."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _run(arguments: Sequence[str], environment: Mapping[str, str], root: Path, ui: Ui) -> int:
    if arguments[:1] == ["--json"] or (arguments[-1:] == ["--json"] and arguments[0] not in JSON_OF_THEIR_OWN):
        ui.use_json()
        arguments = arguments[1:] if arguments[0] == "--json" else arguments[:-1]
    name, words = (arguments[0], arguments[1:]) if arguments else ("start", ())
    verb = VERBS.get(name)
    if name in HELP or (verb and words and words[0] in HELP and name != "patches"):
        ui.line(f"./start.sh {name}: {verb.help}" if verb else usage())
        return 0
    if verb is None or (words and not verb.takes_words):
        raise Failure("E_CONFIG", found=f"the arguments {' '.join(arguments)!r}", needed="one verb; ./start.sh help lists them")
    settings = config.load(root, environment)
    if settings.is_on("DRY_RUN") and name in WITHOUT_PLAN:
        raise Failure("E_CONFIG", found=f"DRY_RUN=1, and {name} has no plan to show", needed="DRY_RUN=0 to have it done")
    job = Job(settings, environment, ui, name)
    if settings.text("NO_COLOR"):
        ui.give_up_colour()
    ui.moves = not settings.text("NO_ANIM")
    Environment("host", job).adopt()
    for notice in settings.notices:
        if not notice.is_harmless:
            ui.inform(notice.code, notice.text)
    return verb.load()(job, words)
