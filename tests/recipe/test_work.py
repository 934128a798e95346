"""Commands of the engine that end by themselves, as processes: their status, their limit, and nothing left of them."""

import time
from pathlib import Path

import pytest

from fixtures.clone_box import processes_marked
from recipe import files
from recipe.record import Launch
from recipe.runtimes.process import ProcessRuntime


def launch(*argv: str) -> Launch:
    return Launch("process", argv, {"PATH": "/usr/bin:/bin"}, "/", "127.0.0.1", 1, "work", "", "", "build", {})


@pytest.mark.parametrize("status", [0, 5])
def test_its_status_and_its_words_are_known(tmp_path: Path, status: int) -> None:
    log = tmp_path / "log"
    done = ProcessRuntime().work(launch("sh", "-c", f"echo in {{run}}; exit {status}"), tmp_path, log, 20, lambda: None)
    assert done == status
    assert log.read_text().splitlines()[-1] == f"in {tmp_path}"


def test_what_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    began, ticks = time.monotonic(), []
    done = ProcessRuntime().work(launch("sh", "-c", "sleep 600 & wait"), tmp_path, tmp_path / "log", 1.5, lambda: ticks.append(1))
    assert done is None
    assert time.monotonic() - began < 10
    assert ticks
    assert processes_marked(tmp_path.name) == []


def test_a_command_that_is_not_there_is_a_status(tmp_path: Path) -> None:
    assert ProcessRuntime().work(launch("no-such-command"), tmp_path, tmp_path / "log", 5, lambda: None) == 127


def test_what_another_start_put_in_place_meanwhile_stays(tmp_path: Path) -> None:
    made, final = tmp_path / "made", tmp_path / "final"
    for place, text in ((made, "mine"), (final, "theirs")):
        place.mkdir()
        (place / "file").write_text(text)
    files.put_in_place(made, final, is_there=True)
    assert (final / "file").read_text() == "theirs"
    files.put_in_place(made, final, is_there=False)
    assert (final / "file").read_text() == "mine"
