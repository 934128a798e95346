"""Step 5: start the server; with a restart, the old one gives way only now, when everything else is prepared."""

from collections.abc import Sequence

from recipe import runtimes, server
from recipe.job import Job
from recipe.plan import Act, Action, Task
from recipe.record import Launch, Record
from recipe.steps.checks import wait_for_gpus


class ServeStep:
    """`record` is set as soon as there may be something to end again; `gives_way` once the old server is told to end."""

    title = "Start"

    def __init__(self, job: Job, launch: Launch, old: Record | None) -> None:
        self._job = job
        self.launch = launch
        self.old = old
        self.record: Record | None = None
        self.gives_way = False

    def is_ready(self) -> bool:
        """Never: a server that runs already is re-attached before any step."""
        return False

    def actions(self) -> Sequence[Action]:
        shown = self._job.shown_folder()
        start = Act(runtimes.of(self.launch).line(self.launch, shown), self._start)
        grace_s = self._job.config.number("STOP_TIMEOUT")
        give_way = Task(f"let the running server finish for at most {grace_s} s, end it, pack its logs", self._give_way)
        room = [Task("wait until the GPUs' memory is given back", self._await_gpus)] if self._job.config.gpus() else []
        # First what may fail while the old server still serves.
        make = Task(f"make the run folder {shown}", self._job.folder)
        return (make, *((give_way,) if self.old is not None else ()), *room, start)

    def run(self) -> None:
        for action in self.actions():
            action.run()

    def _give_way(self) -> None:
        if self.old is not None:
            self.gives_way = True
            packed = server.end(self.old, self._job.places, self._job.config.number("STOP_TIMEOUT"))
            if packed is not None:
                self._job.ui.inform("I_ARCHIVE", str(packed))

    def _await_gpus(self) -> None:
        taken = wait_for_gpus(self._job)
        if taken is not None:
            raise taken.failure()

    def _start(self) -> None:
        folder = self._job.folder()
        self.record = Record(self.launch, folder)
        self.record = server.start(self.launch, folder, self._job.places)
        self._job.hand_over()
