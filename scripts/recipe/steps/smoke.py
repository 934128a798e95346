"""Step 6: wait until the server is ready, ask it something, say that it is live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from recipe import files, runlog, server
from recipe.adapters import http
from recipe.failure import Failure
from recipe.job import Job
from recipe.plan import Action, Task, run_actions
from recipe.probes import Probe, probes
from recipe.record import Launch, Record

POLL_S = 0.2
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
        asked = [
            Task(f"POST {url}/v1/chat/completions: {probe.name}; at most {self._job.config.number('SMOKE_TIMEOUT')} s", self._asker(probe))
            for probe in self._probes()
        ]
        return (
            Task(f"GET {url}/health/ready until it says 200; at most {wait_s} s, as long as the server lives", self._wait),
            *asked,
            Task(f"say: {LIVE.format(port=self._launch.port)}", self._say),
        )

    def run(self) -> None:
        run_actions(self)

    def _probes(self) -> tuple[Probe, ...]:
        return probes(self._launch.settings.get("PROFILE", ""))

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
            if not server.is_alive(record):
                raise Failure("E_START", found=f"the server ended; its last log line: {last}", needed="a server that stays")
            if health.state == "failed":
                raise Failure("E_START", found=f"the engine failed: {health.cause}", needed="an engine that loads")
            waited_s = time.monotonic() - began
            if waited_s > limit_s:
                raise Failure(
                    "E_API", found=f"not ready after {limit_s} s ({health.cause}); last log line: {last}", needed="/health/ready with 200"
                )
            ui.progress(f"loading for {waited_s:.0f} s; last log line: {last}")
            time.sleep(POLL_S)

    def _asker(self, probe: Probe) -> Callable[[], None]:
        return lambda: self._ask(probe)

    def _ask(self, probe: Probe) -> None:
        launch, record = self._launch, self._record()
        body: dict[str, Any] = {"model": launch.name, **probe.body}
        answer = http.call(
            launch.address,
            launch.port,
            "/v1/chat/completions",
            body=body,
            key=launch.key(),
            timeout_s=self._job.config.number("SMOKE_TIMEOUT"),
        )
        self._keep(record, probe, body, answer)
        if answer.status != 200:
            said = answer.body.strip()[:300] or "nothing"
            raise Failure("E_SMOKE", found=f"{probe.name}: status {answer.status}, {said}", needed="status 200")
        complaint = probe.judge(answer.data())
        if complaint:
            raise Failure("E_SMOKE", found=f"{probe.name}: {complaint}", needed="an acceptable answer")

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
