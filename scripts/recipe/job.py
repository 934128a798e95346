"""What one invocation works with: settings, places, the run folder, and how commands are carried out. Decides no order of things."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from failure import Failure
from recipe import files, runlog, secrets
from recipe.adapters import process
from recipe.config import Config
from recipe.plan import Command
from recipe.server import Places
from recipe.settings import SETTINGS
from recipe.ui import PROGRESS_EVERY_S, Ui

# A tool must not see what makes this program's own Python run, nor a secret it was not given by name.
_SECRETS = (name for setting in SETTINGS.values() if setting.is_secret for name in (setting.name, *setting.aliases))
KEPT_BACK = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", *_SECRETS)
UNFINISHED = "unfinished.json"
LONG_EVERY_S, READ_LINES = 60.0, 40


@dataclass
class Job:
    config: Config
    environment: Mapping[str, str]
    ui: Ui
    verb: str
    _folder: Path | None = field(default=None)

    @property
    def places(self) -> Places:
        config = self.config
        return Places(config.folder("STATE_DIR"), config.folder("LOG_DIR"), config.number("LOG_KEEP"), secrets.values(config))

    @property
    def data_dir(self) -> Path:
        return self.config.folder("DATA_DIR")

    @property
    def tool_environment(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if name not in KEPT_BACK}

    def folder(self) -> Path:
        """The run folder of this invocation, made when it is first needed. Raises Failure E_LOG."""
        if self._folder is None:
            self._folder = runlog.create(self.places.log_dir)
            files.write_json(self.places.state_dir / UNFINISHED, {"folder": str(self._folder)})
        return self._folder

    def shown_folder(self) -> Path:
        """The run folder, or what its name will look like."""
        return self._folder or self.places.log_dir / "glm53-<UTC time>-<process>"

    def command(
        self, code: str, *argv: str, secrets: Mapping[str, str] | None = None, is_long: bool = False, fetches: bool = False
    ) -> Command:
        """An external command whose failure raises `code` with the last line it printed. `secrets` reach it through its environment.

        `is_long` work is told of once a minute where there is no terminal. What `fetches` is refused where OFFLINE=1.
        """

        def execute(words: Sequence[str]) -> None:
            if fetches:
                self.need_network(shlex.join(words))
            log = self.folder() / runlog.PREPARE_LOG
            began = time.monotonic()
            name = Path(next(word for word in words if word != "env" and "=" not in word)).name
            self.ui.begin()

            def tell() -> None:
                last = runlog.tail(log, 1)
                text = f"{name} for {time.monotonic() - began:.0f} s: {last[0].strip()[:100] if last else ''}"
                self.ui.progress(text, every_s=LONG_EVERY_S if is_long else PROGRESS_EVERY_S)

            status = process.run(words, {**self.tool_environment, **(secrets or {})}, log=log, on_tick=tell)
            self.ui.settle()
            if status != 0:
                said = runlog.tail(log, READ_LINES)
                # What pip says last need not be why.
                told = "; ".join(dict.fromkeys([*[line for line in said if line.startswith("ERROR: ")][-2:], *said[-1:]])) or "no output"
                raise Failure(
                    code,
                    found=f"`{shlex.join(words)}` ended with status {status}: {told}",
                    needed=f"status 0; the whole output is {log.name} of {runlog.archive_of(log.parent)}",
                )

        return Command(argv, execute)

    def need_network(self, what: str) -> None:
        """Raises Failure E_OFFLINE where OFFLINE=1 keeps `what` from being done."""
        if self.config.is_on("OFFLINE"):
            raise Failure("E_OFFLINE", found=f"OFFLINE=1, and what `{what}` would bring is not here", needed="everything brought before")

    def note(self, text: str) -> None:
        """Keep a line of a tool's output and show it as progress."""
        with (self.folder() / runlog.PREPARE_LOG).open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")
        self.ui.progress(text[:100])

    def put_away(self) -> Path | None:
        """Archive this invocation's run folder, where one was made."""
        packed = runlog.archive(self._folder, self.places.log_keep, self.places.hidden) if self._folder is not None else None
        self.hand_over()
        return packed

    def hand_over(self) -> None:
        """The run folder is a server's now, or packed: it is no longer this invocation's to clear away."""
        (self.places.state_dir / UNFINISHED).unlink(missing_ok=True)

    def has_leftover(self) -> bool:
        """Whether an earlier invocation was killed before it could put its run folder away."""
        return (self.places.state_dir / UNFINISHED).exists()

    def put_away_leftover(self) -> Path | None:
        """Archive the run folder of an earlier invocation that was killed."""
        told = files.read_json(self.places.state_dir / UNFINISHED)
        packed = runlog.archive(Path(str(told["folder"])), self.places.log_keep, self.places.hidden) if told and "folder" in told else None
        self.hand_over()
        return packed
