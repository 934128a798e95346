"""Step 6: wait until the server is ready, ask it something, say that it is live."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from failure import Failure
from recipe import files, runlog, server
from recipe.adapters import kernel
from recipe.job import Job
from recipe.plan import Action, Task, run_actions
from recipe.record import Launch, Record
from verify import http
from verify.client import read_reply, says_vision
from verify.probes import PICTURE_PROBE, PROBES, Probe, collapse

POLL_S = 0.2
READ_LINES, CAUSES = 200, 3
# Lines that say why: of the server's own log, of Python, of the kernel's out-of-memory killer, of CUDA; and what is said in any case.
CAUSE = re.compile(
    r"\b(ERROR|CRITICAL|FATAL)\b|^lockstep: |^[\w.]*(Error|Exception|Exit)\b|(?i:out of memory|ended (by|with) |(?<![.\w])error: )"
)
FAREWELL = re.compile(r"\b(draining|Shutting down|Finished server process|Application shutdown)\b")
# How the server names a window that does not fit the memory.
WINDOW_WORD = "(window_too_large)"
LIVE = "GLM-5.3-Flash-EXL3 is now LIVE! on port {port}"


class SmokeStep:
    """`record` gives the server once it is started; `launch` says how it is reached."""

    title = "Wait, smoke test, LIVE"

    def __init__(self, job: Job, launch: Launch, record: Callable[[], Record]) -> None:
        self._job = job
        self._launch = launch
        self._record = record

    def is_ready(self) -> bool:
        """Never: a server is asked at every start."""
        return False

    def actions(self) -> Sequence[Action]:
        wait_s, url = self._job.config.number("WAIT_TIMEOUT"), self._launch.url
        limit, post = f"at most {self._job.config.number('SMOKE_TIMEOUT')} s", f"POST {url}/v1/chat/completions:"
        asked = [Task(f"{post} {probe.name}; {limit}", self._asker(probe)) for probe in PROBES]
        if self._launch.settings.get("VISION") == "1":
            asked.append(Task(f"{post} {PICTURE_PROBE.name}, if the server says that it takes pictures; {limit}", self._ask_picture))
        if self._launch.key_file:
            asked.append(Task(f"GET {url}/v1/models without a key, from where one is needed: needs 401; {limit}", self._ask_without_key))
        return (
            Task(f"GET {url}/health/ready until it says 200; at most {wait_s} s, as long as the server lives", self._wait),
            *asked,
            Task(f"say: {LIVE.format(port=self._launch.port)}", self._say),
        )

    def run(self) -> None:
        run_actions(self)

    def _wait(self) -> None:
        record, ui = self._record(), self._job.ui
        limit_s, began = self._job.config.number("WAIT_TIMEOUT"), time.monotonic()
        ui.begin()
        while True:
            health = server.health(record)
            if health.state == "ready":
                ui.settle()
                return
            last = (runlog.tail(record.log, 1) or ["(no line yet)"])[0]
            status = server.status(record)
            if status != server.RUNNING:
                logs = (record.log_of(1), record.log)
                raise _ended([line for log in logs for line in runlog.tail(log, READ_LINES)], status)
            if health.state == "failed":
                raise Failure("E_START", found=f"the engine failed: {health.cause}", needed="an engine that loads")
            waited_s = time.monotonic() - began
            if waited_s > limit_s:
                found = f"not ready after {limit_s} s ({health.cause}); last log line: {last}"
                raise Failure("E_API", found=found, needed="/health/ready with 200")
            ui.progress(f"not ready for {waited_s:.0f} s ({health.cause}); last log line: {last}")
            time.sleep(POLL_S)

    def _asker(self, probe: Probe) -> Callable[[], None]:
        return lambda: self._ask(probe)

    def _ask_picture(self) -> None:
        if says_vision(((self._call("/v1/models", None).data().get("data")) or [{}])[0]):
            self._ask(PICTURE_PROBE)
        else:
            self._job.ui.line("  no picture was asked about: the server does not say that it takes any")

    def _call(self, path: str, body: dict[str, Any] | None) -> http.Answer:
        launch, limit_s = self._launch, self._job.config.number("SMOKE_TIMEOUT")
        return http.call(launch.address, launch.port, path, body=body, key=launch.key(), timeout_s=limit_s)

    def _ask(self, probe: Probe) -> None:
        body: dict[str, Any] = {"model": self._launch.name, **probe.body}
        answer = self._call("/v1/chat/completions", body)
        self._keep(self._record(), probe, body, answer)
        reply = read_reply(answer)
        is_known = self._job.config.text("SMOKE") == "right"
        unit = collapse(reply) if is_known else ""
        if unit:
            raise Failure("E_COLLAPSED", found=f"{probe.name}: the answer says {unit!r} over and over", needed="an answer")
        complaint = reply.error or (probe.judge(reply) if is_known else "")
        if complaint:
            raise Failure("E_SMOKE", found=f"{probe.name}: {complaint}", needed="an acceptable answer")

    def _ask_without_key(self) -> None:
        """Somebody else has to be turned away: everybody where AUTH=key, else who comes by an address of the network."""
        launch, limit_s = self._launch, self._job.config.number("SMOKE_TIMEOUT")
        is_everywhere = launch.host in ("0.0.0.0", "::")
        address = launch.address if launch.settings.get("AUTH") == "key" else kernel.own_address() if is_everywhere else ""
        status = http.call(address, launch.port, "/v1/models", timeout_s=limit_s).status if address else 0
        if status == 200:
            found = f"{address} port {launch.port} answers a request without a key"
            raise Failure("E_AUTH", found=found, needed="401, as somebody else may ask so")

    def _keep(self, record: Record, probe: Probe, body: dict[str, Any], answer: http.Answer) -> None:
        place = record.folder / runlog.SMOKE_FILE
        told = files.read_json(place) or {}
        told[probe.name] = {"request": body, "status": answer.status, "reply": answer.data() or answer.body}
        try:
            files.write_json(place, told)
        except OSError as error:
            raise Failure("E_LOG", found=f"{place}: {error.strerror}", needed="a run folder that can be written") from error

    def _say(self) -> None:
        ui, launch = self._job.ui, self._launch
        ui.line(f"  health:   {launch.url}/health")
        ui.line(f"  log:      {self._record().log}")
        ui.live(LIVE.format(port=launch.port))
        ui.line(f"  endpoint: {launch.url}/v1   model: {launch.name}")


def _ended(log: list[str], status: server.Status) -> Failure:
    """Why a server ended while it was loading, as far as its log tells."""
    too_large = next((line for line in reversed(log) if WINDOW_WORD in line), None)
    if too_large is not None:
        return Failure("E_CONTEXT", found=too_large, needed="a window that fits")
    how = "" if not isinstance(status, int) else f" with status {status}" if status >= 0 else f" by signal {-status}"
    causes = [line for line in log if CAUSE.search(line)] or [line for line in log if not FAREWELL.search(line)] or ["no line in its log"]
    told = "; ".join(dict.fromkeys(line.strip() for line in causes[-CAUSES:]))
    return Failure("E_START", found=f"the server ended{how}: {told}", needed="a server that stays")
