"""`bench/gpu/suite.py` with stand-ins for benches, and what of the benches a machine without a GPU can run."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from checkpoints.sizes import Sizes
from checks.listing import ROOT
from lockstep.model.glm import GlmModel

BENCHES = ROOT / "bench/gpu"
HEAD = {"commit": "c0ffee", "driver": "600.1", "gpu": "NVIDIA H200", "torch": "2.13.0"}
WELL = 'import sys, json; print("begins"); open(sys.argv[-1], "w").write(json.dumps({"by": sys.argv[1]})); print(sys.argv[1], "done")'


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return bench("suite", monkeypatch)


def bench(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHES)
    return importlib.import_module(name)


def step(suite: ModuleType, name: str, program: str = WELL, limit_s: float = 20, leaves: bool = True) -> Any:
    return suite.Step(name, ("-c", program, name), limit_s, f"{name}_h200.json" if leaves else "")


def ran(suite: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *steps: Any, words: tuple[str, ...] = ()) -> tuple[int, Any]:
    """Exit status and summary of the command with these steps on a card that is not there."""
    monkeypatch.setattr(suite, "facts", lambda: dict(HEAD))
    monkeypatch.setattr(suite, "steps", lambda card: list(steps))
    status = suite.main([str(out), *words])
    return status, json.loads((out / "suite_h200.json").read_text())


def test_steps_run_in_order_and_leave_results_logs_and_a_summary(suite: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    out = tmp_path / "new" / "place"
    checks = step(suite, "tests", 'print("31 passed")', leaves=False)
    status, told = ran(suite, monkeypatch, out, checks, step(suite, "experts"), step(suite, "dense"))
    assert status == 0
    assert {name: told[name] for name in HEAD} == HEAD
    assert (told["failed"], told["command"]) == ([], "PYTHONPATH=engine:tests python bench/gpu/suite.py bench/results/")
    assert [(one["name"], one["rc"], one["failed"], one["said"]) for one in told["steps"]] == [
        ("tests", 0, None, "31 passed"), ("experts", 0, None, "experts done"), ("dense", 0, None, "dense done"),
    ]  # fmt: skip
    assert told["steps"][1]["command"] == "PYTHONPATH=engine:tests python bench/gpu/experts.py bench/results/experts_h200.json"
    assert 0 <= sum(one["seconds"] for one in told["steps"]) <= told["seconds"] + 0.3
    assert json.loads((out / "dense_h200.json").read_text()) == {"by": "dense"}
    names = {"dense.log", "dense_h200.json", "experts.log", "experts_h200.json", "suite_h200.json", "tests.log"}
    assert {path.name for path in out.iterdir()} == names
    assert (out / "experts.log").read_text() == "begins\nexperts done\n"


def test_a_failing_step_is_told_stops_no_other_and_replaces_no_result(suite: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "dense_h200.json").write_text("older")
    (tmp_path / "index_h200.json").write_text("older")
    steps = [
        step(suite, "tests", 'raise SystemExit("3 failed")', leaves=False),
        step(suite, "dense", WELL + '\nraise SystemExit("other bits")'),
        step(suite, "index", 'print("nothing to say")'),
        step(suite, "round"),
    ]
    status, told = ran(suite, monkeypatch, tmp_path, *steps)
    assert status == 1
    assert told["failed"] == ["tests", "dense", "index"]
    assert [one["failed"] for one in told["steps"]] == ["exit status 1", "exit status 1", "left no index_h200.json", None]
    assert [one["said"] for one in told["steps"][:2]] == ["3 failed", "other bits"]
    assert (tmp_path / "dense_h200.json").read_text() == (tmp_path / "index_h200.json").read_text() == "older"
    assert json.loads((tmp_path / "round_h200.json").read_text()) == {"by": "round"}


def test_a_step_that_takes_too_long_is_ended_with_all_it_started(suite: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    child = tmp_path / "child"
    hangs = f"""
import subprocess, sys, time
print("waits", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
open({str(child)!r}, "w").write(str(child.pid))
time.sleep(300)
"""
    status, told = ran(suite, monkeypatch, tmp_path, step(suite, "round", hangs, limit_s=2), step(suite, "prompt"))
    assert status == 1
    assert [(one["rc"], one["failed"], one["said"]) for one in told["steps"]] == [
        (124, "longer than 2 s", "waits"), (0, None, "prompt done"),
    ]  # fmt: skip
    assert 2 <= told["steps"][0]["seconds"] < 15
    deadline = time.monotonic() + 10
    while is_alive(int(child.read_text())):
        assert time.monotonic() < deadline, "the step's own child still runs"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_end_in_between_leaves_the_summary_of_what_was_done(suite: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def interrupted(one: Any, out: Path) -> dict[str, Any]:
        if one.name == "dense":
            raise KeyboardInterrupt
        return {"name": one.name, "failed": None, "seconds": 0.0, "said": ""}

    monkeypatch.setattr(suite, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ran(suite, monkeypatch, tmp_path, step(suite, "experts"), step(suite, "dense"))
    assert [one["name"] for one in json.loads((tmp_path / "suite_h200.json").read_text())["steps"]] == ["experts"]


def test_some_steps_can_be_asked_for_and_a_copy_told_its_commit(suite: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    words = ("--only", "round", "--commit", "abc")
    status, told = ran(suite, monkeypatch, tmp_path, step(suite, "experts"), step(suite, "round"), words=words)
    assert (status, told["commit"], [one["name"] for one in told["steps"]]) == (0, "abc", ["round"])


def test_without_a_gpu_nothing_runs(suite: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(suite, "told", lambda command: None)
    assert suite.main([str(tmp_path / "out")]) == 2
    assert "no GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_bench_of_the_folder_is_a_step_and_every_card_names_files(suite: ModuleType):
    programs = {path.stem for path in BENCHES.glob("*.py") if 'if __name__ == "__main__":' in path.read_text()}
    assert set(suite.BENCHES) == programs - {"suite", "report"}
    steps = suite.steps("rtx_pro_6000")
    assert [one.name for one in steps][: len(suite.CHECKS)] == ["build", "tests"]
    for one in steps:
        assert one.limit_s > 0
        assert all((ROOT / word).exists() for word in one.words if "/" in word)
    assert [one.leaves for one in steps if one.leaves] == [f"{name}_rtx_pro_6000.json" for name in suite.BENCHES]


def test_a_results_command_is_what_was_asked_and_names_its_place(monkeypatch: pytest.MonkeyPatch):
    result = bench("result", monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr("sys.argv", [f"{BENCHES}/experts.py", "/elsewhere/experts_h200.json", "--tries", "--layers", "3"])
    asked, report = result.begun("words", layers=12, tries=False, plain=False)
    assert (asked.out, asked.layers, asked.tries, asked.plain) == (Path("/elsewhere/experts_h200.json"), 3, True, False)
    command = "PYTHONPATH=engine:tests python bench/gpu/experts.py bench/results/experts_h200.json --layers 3 --tries"
    assert report == {"command": command, "gpu": "a card", "torch": str(torch.__version__)}


def test_a_drawn_model_serves_drafted_and_together_what_it_serves_alone(monkeypatch: pytest.MonkeyPatch):
    torch.set_num_threads(1)
    source = bench("drawn", monkeypatch).Drawn(4, Sizes(), "cpu")
    found = bench("round", monkeypatch).same_replies(GlmModel.load(source, source.config, "cpu"))
    assert (found["requests"], found["tokens_each"]) == (4, 10)
    assert found["distinct_tokens"] > 20
