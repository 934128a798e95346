"""Step 4: launch tables for this host's GPUs. The CPU has none."""

from __future__ import annotations

from collections.abc import Sequence

from recipe.job import Job
from recipe.plan import Action, Task, run_actions


class TuneStep:
    title = "Tune"

    def __init__(self, job: Job) -> None:
        self._job = job

    def is_ready(self) -> bool:
        """Never: there is no result to keep while the engine has nothing that can be tuned."""
        return False

    def actions(self) -> Sequence[Action]:
        return (Task("nothing to tune: the engine has no launch table for this device", self._say),)

    def run(self) -> None:
        run_actions(self)

    def _say(self) -> None:
        device = f"GPUs {','.join(self._job.config.gpus())}" if self._job.config.gpus() else "the CPU"
        self._job.ui.inform("I_TUNE", f"the engine has no launch table for {device}; it uses its only kernels")
