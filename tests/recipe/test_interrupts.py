"""Ctrl-C, SIGTERM and kill -9 at every step leave a state from which the next start works."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fixtures.clone_box import Box, processes_marked
from fixtures.waiting import wait_until

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def unfinished(box: Box) -> list[Path]:
    shop = box.home / ".cache/glm-5.3-flash/unfinished"
    return list(shop.iterdir()) if shop.is_dir() else []


def make_image_slow(box: Box) -> Path:
    """The engine is not built, and building it takes a minute; returns the file that appears when the build is at work."""
    (python,) = (box.home / ".cache/glm-5.3-flash/environments").glob("host-*/bin/python")
    mark = box.home / "building"
    python.write_text(f"#!/bin/sh\ntouch '{mark}'\nsleep 60\n")
    box.plan_file.parent.parent.joinpath("ready.json").unlink()
    return mark


def command_lines() -> str:
    return subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_image_is_built(box: Box, number: signal.Signals) -> None:
    mark = make_image_slow(box)
    start = box.popen()
    wait_until(mark.exists)
    start.send_signal(number)
    _, err = start.communicate(timeout=20)
    assert start.returncode == STATUS[number], err
    assert "[E_INTERRUPTED]" in err
    assert unfinished(box) == []
    assert str(box.home) not in command_lines()
    assert len(box.archives()) == 1
    box.set_engine("first")
    assert box.run().returncode == 0


def test_a_kill_while_the_image_is_built(box: Box) -> None:
    mark = make_image_slow(box)
    start = box.popen()
    wait_until(mark.exists)
    os.kill(start.pid, signal.SIGKILL)
    start.communicate(timeout=20)
    assert len(unfinished(box)) == 1
    # Nothing works on where the next start begins.
    wait_until(lambda: str(box.home) not in command_lines())
    box.set_engine("first")
    done = box.run()
    assert done.returncode == 0, done.stderr
    assert len(box.archives()) == 1
    box.set_engine("second")
    (box.plan_file.parent.parent / "ready.json").unlink()
    box.run("prepare")
    assert unfinished(box) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_server_loads_ends_it(box: Box, number: signal.Signals) -> None:
    box.set_engine("slow", load_s=60)
    start = box.popen()
    wait_until(box.is_listening)
    run = box.run_name
    start.send_signal(number)
    _, err = start.communicate(timeout=20)
    assert start.returncode == STATUS[number], err
    assert processes_marked(run) == []
    assert len(box.archives()) == 1
    box.set_engine("first")
    assert box.run().returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_restart_that_is_taken_back_brings_the_server_of_before_back(box: Box, number: signal.Signals) -> None:
    box.run()
    old = box.record
    box.set_engine("slow", load_s=60)
    start = box.popen("restart")
    wait_until(lambda: (box.root / ".state/server.json").exists() and box.record["launch"]["build"] != old["launch"]["build"])
    wait_until(box.is_listening)
    start.send_signal(number)
    out, err = start.communicate(timeout=30)
    assert start.returncode == 128 + number, err
    assert "bringing the server of before back" in out
    assert box.record["launch"] == old["launch"]
    assert box.run("status").returncode == 0
    assert len(box.archives()) == 2


def test_a_kill_while_the_server_loads_lets_the_next_start_reattach(box: Box) -> None:
    box.set_engine("slow", load_s=2)
    start = box.popen()
    wait_until(box.is_listening)
    os.kill(start.pid, signal.SIGKILL)
    start.communicate(timeout=20)
    run = box.run_name
    done = box.run()
    assert done.returncode == 0, done.stderr
    assert "[I_RUNNING]" in done.stdout
    assert box.run_name == run


def test_a_kill_between_the_record_and_the_start_is_cleared_away(box: Box) -> None:
    box.run()
    record = box.record | {"identity": None}
    run = box.run_name
    (box.root / ".state/server.json").write_text(json.dumps(record))
    done = box.run()
    assert done.returncode == 0, done.stderr
    assert processes_marked(run) == []
    assert box.run_name != run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_at_any_of_thirty_moments_leaves_a_state_from_which_the_next_start_works(box: Box, number: signal.Signals) -> None:
    """Ten moments a signal, one in each tenth of a whole replacement: all six steps are met."""
    box.set_engine("brief", load_s=0.2)
    assert box.run().returncode == 0
    began = time.monotonic()
    assert box.run("restart").returncode == 0
    whole_s, chance = time.monotonic() - began, random.Random(int(number))
    for tenth in range(10):
        start = box.popen("restart")
        time.sleep((tenth + chance.random()) / 10 * whole_s)
        start.send_signal(number)
        start.communicate(timeout=20)
        done = box.run()
        assert done.returncode == 0, done.stderr
    run = box.run_name
    assert box.stop().returncode == 0
    assert processes_marked(run) == []
    assert not box.is_listening()
    assert [path for path in (box.root / "logs").iterdir() if path.is_dir()] == []
