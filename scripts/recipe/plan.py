"""What a start consists of: steps made of actions. A dry run prints the very actions that a run executes."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recipe.ui import Ui


class Action(Protocol):
    """One thing done to the host. Secrets appear by name only."""

    @property
    def line(self) -> str:
        """What is done, on one line: a command as a shell takes it, or a comment where no command does it."""
        ...

    def run(self) -> None:
        """Do it. Raises Failure."""
        ...


@dataclass(frozen=True)
class Command:
    """An external command. `execute` runs an argument list; the line printed is the same list, quoted."""

    argv: tuple[str, ...]
    execute: Callable[[Sequence[str]], None]

    @property
    def line(self) -> str:
        return shlex.join(self.argv)

    def run(self) -> None:
        self.execute(self.argv)


@dataclass(frozen=True)
class Task:
    """Something done inside this program; `what` says it in words."""

    what: str
    act: Callable[[], object]

    @property
    def line(self) -> str:
        return f"# {self.what}"

    def run(self) -> None:
        self.act()


@dataclass(frozen=True)
class Act:
    """Something done inside this program that a shell command can show."""

    line: str
    run: Callable[[], None]


class Step(Protocol):
    """One of the numbered steps. `is_ready` looks without changing anything; `actions` are what `run` does, in order."""

    title: str

    def is_ready(self) -> bool: ...

    def actions(self) -> Sequence[Action]: ...

    def run(self) -> None: ...


def run_actions(step: Step) -> None:
    for action in step.actions():
        action.run()


def show(steps: Sequence[Step], ui: Ui) -> None:
    """Print every step with its actions. A run skips a step that is ready."""
    for number, step in enumerate(steps, start=1):
        ui.step(number, len(steps), step.title)
        for action in step.actions():
            ui.command(action.line)


def carry_out(steps: Sequence[Step], ui: Ui, *, first: int, total: int) -> None:
    """Announce and run steps in order; `first` is the number of the first one. Raises the first Failure."""
    for number, step in enumerate(steps, start=first):
        ui.step(number, total, step.title)
        if step.is_ready():
            ui.inform("I_READY", step.title)
        else:
            step.run()
