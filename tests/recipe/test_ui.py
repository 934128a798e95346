"""What is printed where: colours on a terminal only, plain text elsewhere, texts of others never taken as markup."""

import io
import json
from types import SimpleNamespace

import pytest

from failure import Failure
from recipe.ui import Ui


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_text() -> None:
    out = io.StringIO()
    Ui({"TERM": "xterm"}, out=out).step(1, 6, "Checks")
    assert out.getvalue() == "[1/6] Checks\n"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_a_terminal_that_wants_no_colours_gets_none(environment: dict[str, str]) -> None:
    out = Terminal()
    Ui(environment, out=out).live("LIVE")
    assert out.getvalue() == "LIVE\n"


def test_a_terminal_gets_colours_and_brackets_stay_as_they_are() -> None:
    out = Terminal()
    ui = Ui({"TERM": "xterm"}, out=out)
    ui.step(1, 6, "Checks")
    ui.progress("a log line with [/markup] in it")
    ui.settle()
    ui.line("[red]not red[/red]")
    assert "\x1b[" in out.getvalue()
    assert "[/markup]" in out.getvalue()
    assert "[red]not red[/red]" in out.getvalue()


@pytest.mark.parametrize(
    ("environment", "is_framed"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)]
)
def test_the_banner_is_framed_on_a_terminal_that_can_show_it(environment: dict[str, str], is_framed: bool) -> None:
    out, pipe = Terminal(), io.StringIO()
    Ui(environment, out=out).banner("GLM", "what [is] served")
    Ui(environment, out=pipe).banner("GLM", "what [is] served")
    assert ("╭" in out.getvalue()) == is_framed
    assert "what [is] served" in out.getvalue()
    assert pipe.getvalue() == "GLM: what [is] served\n"


def test_without_moving_lines_a_terminal_gets_plain_progress() -> None:
    out = Terminal()
    ui = Ui({"TERM": "xterm"}, out=out)
    ui.moves = False
    ui.progress("working")
    ui.settle()
    assert out.getvalue() == "  working\n"


def test_json_lines_hold_every_kind_of_text() -> None:
    out, err = io.StringIO(), io.StringIO()
    ui = Ui({}, out=out, err=err)
    ui.use_json()
    ui.banner("GLM", "served")
    ui.step(1, 6, "Checks")
    ui.inform("I_PORT", "free")
    ui.inform("W_DIFFERS", "PORT")
    ui.progress("never shown")
    ui.failure(Failure("E_PORT", found="held", needed="free"))
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert told[:3] == [{"text": "GLM: served"}, {"text": "[1/6] Checks"}, {"code": "I_PORT", "found": "free"}]
    assert (told[3]["code"], bool(told[3]["do"]), told[4]["code"], len(told), err.getvalue()) == ("W_DIFFERS", True, "E_PORT", 5, "")


def test_progress_in_a_pipe_comes_every_ten_seconds_and_not_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    out, now_s = io.StringIO(), 1000.0
    monkeypatch.setattr("recipe.ui.time", SimpleNamespace(monotonic=lambda: now_s))
    ui = Ui({}, out=out)
    ui.begin()
    for after in range(1, 32):
        now_s = 1000.0 + after
        ui.progress(f"working for {after} s")
    assert out.getvalue().splitlines() == [f"  working for {after} s" for after in (10, 20, 30)]


def test_a_failure_says_code_found_needed_and_what_to_do_on_standard_error() -> None:
    out, err = io.StringIO(), io.StringIO()
    ui = Ui({}, out=out, err=err)
    ui.failure(Failure("E_PORT", found="held by nginx", needed="a free port"))
    ui.failure(Failure("E_PORT", found="x", needed="y", remedy="do that"))
    ui.inform("W_DIFFERS", "PORT")
    assert out.getvalue() == ""
    assert err.getvalue().splitlines() == [
        "[E_PORT] the port is taken",
        "    found:   held by nginx",
        "    needed:  a free port",
        "    do this: stop its owner, or choose another PORT",
        "[E_PORT] the port is taken",
        "    found:   x",
        "    needed:  y",
        "    do this: do that",
        "  [W_DIFFERS] PORT",
        "      do this: ./start.sh restart applies them",
    ]
