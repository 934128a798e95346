"""Notices a step that does not end. Knows no ranks and no channel; what to do about it is handed in."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lockstep.core.plan import StepPlan, StepResult
from lockstep.run.team import StepRunner

_TICKS, _LONGEST_TICK_S = 20, 0.5


class Watchdog:
    """Calls `bark(words)` once, from a thread of its own, when what it watches runs longer than `limit_s`.

    Time is counted in ticks of this thread, so a process that was itself stopped for a while does not wake up as stalled.
    """

    def __init__(self, limit_s: float, bark: Callable[[str], None]) -> None:
        self._limit_s, self._bark = limit_s, bark
        self._tick_s = min(limit_s / _TICKS, _LONGEST_TICK_S)
        self._watched = ""
        self._turn = 0
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def watching(self, what: str) -> Iterator[None]:
        """Watch the body, called `what` for people."""
        self._turn += 1
        self._watched = what
        try:
            yield
        finally:
            self._watched = ""

    def close(self) -> None:
        """Stop watching for good."""
        self._closed.set()

    def _watch(self) -> None:
        seen, since_s = 0, 0.0
        while not self._closed.wait(self._tick_s):
            what, turn = self._watched, self._turn
            since_s = since_s + self._tick_s if what and turn == seen else 0.0
            seen = turn
            if since_s > self._limit_s:
                self._bark(f"{what} did not end within {self._limit_s:g} s (--step-timeout): a rank hangs or is too slow")
                return


class WatchedRunner:
    """A runner under a watchdog."""

    def __init__(self, runner: StepRunner, watchdog: Watchdog) -> None:
        self._runner, self._watchdog, self._steps = runner, watchdog, 0

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step, watched."""
        self._steps += 1
        with self._watchdog.watching(f"step {self._steps}"):
            return self._runner.execute(plan)

    def state_hash(self, request_id: str) -> str:
        """Hash a state, watched."""
        with self._watchdog.watching(f"state hash of request {request_id}"):
            return self._runner.state_hash(request_id)
