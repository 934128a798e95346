"""support-bundle: everything that helps others to help, in one private archive without secrets. Sends nothing anywhere."""

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from failure import Failure
from recipe import runlog, secrets, server
from recipe.adapters import host, process
from recipe.job import Job
from recipe.ui import Ui
from recipe.verbs import look, start

ANSWER_S = 20.0
ASKED = {
    "uname": ("uname", "-a"),
    "nvidia-smi": ("nvidia-smi", "-q"),
    "nvidia-smi-topology": ("nvidia-smi", "topo", "-m"),
    "docker-version": ("docker", "version"),
    "docker-info": ("docker", "info"),
    "df": ("df", "-h"),
}


def support_bundle(job: Job, words: Sequence[str]) -> int:
    """Writes the archive to LOG_DIR and names it. Raises Failure E_LOG."""
    hidden = secrets.values(job.config)
    target = job.places.log_dir / f"support-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.tar.gz"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with runlog.packing(target) as tar:
            for name, text in _texts(job):
                content = secrets.without(hidden, text.encode())
                facts = tarfile.TarInfo(f"support/{name}")
                facts.size, facts.mode, facts.mtime = len(content), 0o600, int(time.time())
                tar.addfile(facts, io.BytesIO(content))
            for path in _logs(job):
                runlog.add(tar, path, f"support/logs/{path.name}", hidden)
    except OSError as error:
        raise Failure("E_LOG", found=f"{target}: {error.strerror}", needed="a LOG_DIR that can be written, with space") from error
    job.ui.inform("I_ARCHIVE", f"{target}: look through it before you give it to anybody")
    return 0


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    yield "config.txt", _said(job, lambda quiet: look.config(quiet, ()))
    yield "status.txt", _said(job, lambda quiet: look.status(quiet, ()))
    yield "doctor.jsonl", _said(job, lambda quiet: start.doctor(quiet, ()), is_json=True)
    record = job.places.state_dir / "server.json"
    yield "server.json", record.read_text(encoding="utf-8") if record.is_file() else "{}"
    if (found := server.find(job.places)) is not None:
        yield "health.json", _said(job, lambda quiet: quiet.ui.line(json.dumps(server.told(found), indent=2)))
    yield "host.txt", f"{host.machine()}\n{host.python(job.environment)}\n"
    commit = ("git", "-C", str(job.config.root), "log", "-1", "--format=%H %cI")
    for name, words in {**ASKED, "git": commit}.items():
        yield f"{name}.txt", process.ask(words, job.tool_environment, timeout_s=ANSWER_S).output


def _said(job: Job, verb: Callable[[Job], object], *, is_json: bool = False) -> str:
    said = io.StringIO()
    quiet = Job(job.config, job.environment, Ui({}, out=said, err=said), job.verb)
    if is_json:
        quiet.ui.use_json()
    try:
        verb(quiet)
    except Failure as failure:
        quiet.ui.failure(failure)
    return said.getvalue()


def _logs(job: Job) -> Iterator[Path]:
    """The run folder in use, or the newest archive."""
    folder = job.places.log_dir / runlog.CURRENT
    if folder.exists():
        yield from (path for path in sorted(folder.resolve().rglob("*")) if path.is_file())
        return
    yield from sorted(job.places.log_dir.glob("glm53-*.tar.gz"), key=lambda path: path.stat().st_mtime)[-1:]
