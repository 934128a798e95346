"""The only module that prints. Plain text for pipes and dumb terminals, colours on a terminal; knows codes, no steps."""

import io
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from failure import Failure
from recipe.codes import CODES

PROGRESS_EVERY_S = 10.0


def _stream(stream: TextIO | None) -> TextIO:
    """A stream that takes every character, though a locale may not know it; one that was closed takes all and shows none."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream or io.StringIO()


class Ui:
    """Lines of `I_` go to standard output, `W_` and `E_` to standard error."""

    def __init__(self, environment: Mapping[str, str], *, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or _stream(sys.stdout), err or _stream(sys.stderr)
        self.has_colour = self._out.isatty() and not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"
        self._consoles: dict[int, Any] = {}
        self._last_progress_s = 0.0
        self._status: Any = None
        self.is_json = False
        self.moves = self.is_heard = True

    def use_json(self) -> None:
        """One JSON object a line on standard output from now on: codes with their facts, other lines as text."""
        self.is_json, self.has_colour = True, False

    def say(self, **facts: str) -> None:
        """One object for programs that read."""
        self._write(json.dumps(facts), is_bare=True)

    def ask(self, question: str) -> str | None:
        """An answer from the terminal; None where there is none to ask."""
        if self.is_json or not (sys.stdin.isatty() and self._out.isatty()):
            return None
        self.settle()
        self._out.write(question)
        self._out.flush()
        return sys.stdin.readline()

    def give_up_colour(self) -> None:
        """Plain text from now on, terminal or not."""
        self.has_colour = False

    def _console(self, stream: TextIO) -> Any:
        """A rich console for this stream, or None where colours are off or rich is not installed."""
        if not self.has_colour or not stream.isatty():
            return None
        if id(stream) not in self._consoles:
            try:
                from rich.console import Console
            except ImportError:
                # It may come later: the first start makes the environment that holds it.
                return None
            self._consoles[id(stream)] = Console(file=stream, highlight=False)
        return self._consoles[id(stream)]

    def _write(self, text: str, style: str = "", *, to_err: bool = False, is_bare: bool = False) -> None:
        if self.is_json and not is_bare:
            if text.strip():
                self.say(text=text.strip())
            return
        stream = self._err if to_err else self._out
        console = self._console(stream)
        try:
            if console is None:
                print(text, file=stream, flush=True)
            else:
                console.print(text, style=style, markup=False, soft_wrap=True)
        except OSError:
            # Nobody reads any more (`| head`), or a disk is full: a server must not be lost for that, so the work goes on in silence.
            self.is_heard = False
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    def line(self, text: str = "") -> None:
        self._write(text)

    def headline(self, text: str) -> None:
        self._write(text, "bold")

    def banner(self, title: str, text: str) -> None:
        """What is served: framed on a terminal that can show it, one line elsewhere."""
        console = self._console(self._out)
        if console is None:
            self.headline(f"{title}: {text}")
            return
        from rich.panel import Panel
        from rich.text import Text

        console.print(Panel(Text(text), title=title, expand=False))

    def live(self, text: str) -> None:
        self._write(text, "bold green")

    def step(self, number: int, total: int, title: str) -> None:
        self.settle()
        self._write(f"[{number}/{total}] {title}", "bold cyan")

    def command(self, line: str) -> None:
        self._write(f"    {line}")

    def inform(self, code: str, text: str) -> None:
        """One `[CODE] text` line; warnings and errors to standard error with what to do."""
        self.settle()
        known = CODES[code]
        if self.is_json:
            self.say(code=code, found=text, **({} if code.startswith("I_") else {"do": known.remedy}))
            return
        if code.startswith("I_"):
            self._write(f"  [{code}] {text}", "dim")
            return
        self._write(f"  [{code}] {text}", "yellow" if code.startswith("W_") else "bold red", to_err=True)
        if code.startswith("W_"):
            self._write(f"      do this: {known.remedy}", to_err=True)

    def failure(self, failure: Failure) -> None:
        """Code and meaning, what was found, what was needed, what to do."""
        self.settle()
        code = CODES.get(failure.code)
        meaning = code.meaning if code else "a code that is not registered"
        remedy = failure.remedy or (code.remedy if code else "report it")
        if self.is_json:
            self.say(code=failure.code, meaning=meaning, found=failure.found, needed=failure.needed, do=remedy)
            return
        self._write(f"[{failure.code}] {meaning}", "bold red", to_err=True)
        self._write(f"    found:   {failure.found}", to_err=True)
        self._write(f"    needed:  {failure.needed}", to_err=True)
        self._write(f"    do this: {remedy}", to_err=True)

    def progress(self, text: str, *, every_s: float = PROGRESS_EVERY_S) -> None:
        """What is going on now: a moving line on a terminal, one line every `every_s` seconds elsewhere, nothing in JSON."""
        if self.is_json:
            return
        console = self._console(self._out) if self.moves else None
        if console is not None:
            from rich.text import Text

            # Text, not a string: brackets in a log line are no markup. One row, or the terminal scrolls.
            shown = Text(text[: max(console.width - 4, 1)])
            if self._status is None:
                self._status = console.status(shown)
                self._status.start()
            self._status.update(shown)
        elif time.monotonic() - self._last_progress_s >= every_s:
            self._write(f"  {text}")
            self._last_progress_s = time.monotonic()

    def begin(self) -> None:
        """Start of something that reports progress: the first plain line comes after ten seconds, not at once."""
        self._last_progress_s = time.monotonic()

    def settle(self) -> None:
        """End a moving line before the next lasting one."""
        if self._status is not None:
            self._status.stop()
            self._status = None
