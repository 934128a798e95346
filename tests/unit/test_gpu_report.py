"""docs/gpu.md and its figures follow bench/results; predictions are what their inputs make of them."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from checks.listing import ROOT


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench/gpu")
    return importlib.import_module("report")


@pytest.fixture
def prediction(report: ModuleType) -> ModuleType:
    return report.prediction


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the page is made of, and what it is."""
    (tmp_path / "bench/results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    for path in ROOT.glob("bench/results/*_h200.json"):
        shutil.copy(path, tmp_path / "bench/results")
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copy(ROOT / "docs/gpu.md", tmp_path / "docs")
    shutil.copytree(ROOT / "docs/gpu", tmp_path / "docs/gpu")
    return tmp_path


def test_page_figures_and_readme_follow_the_results(report: ModuleType, tree: Path):
    assert list(report.findings(tree)) == []
    place = tree / "bench/results/round_h200.json"
    told = json.loads(place.read_text())
    told["round_ms"]["32"] = told["rounds"]["32"]["round_ms"] = 9.9
    place.write_text(json.dumps(told))
    (tree / "docs/gpu/index.svg").unlink()
    (tree / "docs/gpu/other.svg").write_text("of nothing")
    found = [line.split(" ")[0] for line in report.findings(tree)]
    wrong = ["docs/gpu.md", "docs/gpu/rounds.svg", "docs/gpu/index.svg", "docs/gpu/predicted.svg", "docs/gpu/other.svg"]
    assert found == [*wrong, "README.md", "README.md"]


def test_what_was_missed_is_said(report: ModuleType):
    results = report.load(ROOT)
    one = results["round"]["rounds"]["8"]
    for took, verdict in ((9.3, "**missed**"), (9.1, "met as drawn, **missed** with even routing"), (5.0, "met")):
        one["round_ms"] = took
        one["graph_ms"] = took / 2
        one["share"]["product"] = 1.0 if took == 9.1 else 0.0
        results["experts"] = experts_of(1e3 if took == 9.1 else 0.0)
        assert {row[0]: row[-1] for row in report.asked_rounds(results)}["round, 8 rows"] == verdict
    results = report.load(ROOT)
    results["sampler"]["us"] = {"greedy; bf16": {"1": 20.0, "32": 150.0}, "greedy; fp32": {"32": 149.0}}
    assert {row[0]: row[-1] for row in report.asked_others(results)}["sampler, 1 to 32 rows, every mode"] == "met"
    results["sampler"]["us"]["greedy; fp32"]["32"] = 151.0
    assert {row[0]: row[-1] for row in report.asked_others(results)}["sampler, 1 to 32 rows, every mode"] == "**missed**"


def experts_of(us: float) -> dict[str, object]:
    """Results of products that take `us` microseconds a layer however many experts there are."""
    part = {variant: {"us_per_layer": us / 2} for variant in ("real", "bytes_only", "alu_only")}
    return {"distinct_experts": {str(at): {"distinct_per_layer": at, "gate_up": part, "down": part} for at in (1.0, 288.0)}}


def test_predictions_by_hand(report: ModuleType, prediction: ModuleType):
    assert prediction.distinct(1) == pytest.approx(8)
    assert prediction.distinct(32) == pytest.approx(171.1, abs=0.05)
    assert [prediction.between({1: 10.0, 3: 20.0}, at) for at in (0.5, 1, 2, 3, 6)] == [10, 10, 15, 20, 40]
    results = report.load(ROOT)
    # Eight experts of 6.32 MB in 42 layers at 1.63 TB/s; decoding is shorter on so many multiprocessors.
    assert prediction.round_parts(results, 1)["experts"][0] == pytest.approx(8 * 6.322 * 42 / 1.63e3, rel=1e-3)
    results["experts"] = experts_of(1e4)
    fast, slow = 10 * 42 * 132 * 1.9 / (188 * 2.6), 10 * 42 * 4.24 / 1.58
    assert prediction.round_parts(results, 1)["experts"] == (pytest.approx(fast), pytest.approx(slow))
    # 0.1 ms of bytes within 1 ms of work.
    hidden, added = 132 * 1.9 / (188 * 2.6), 0.424 / 1.58 + 0.9 * 1.9 / 1.6
    assert prediction.moved(1.0, 4.24e8, (True, False)) == (pytest.approx(hidden), pytest.approx(added))
    assert prediction.moved(1.0, 4.24e9, (True, False)) == (pytest.approx(4.24 / 1.63), pytest.approx(4.24 / 1.58))


def test_ranges_are_ranges_and_grow(report: ModuleType, prediction: ModuleType):
    results = report.load(ROOT)
    counts = [1, 2, 4, 8, 16, 32]
    for kind in ("one", "captured", "launched"):
        ranges = [prediction.rounds(results, rows)[kind] for rows in counts]
        assert all(0 < least < most for least, most in ranges)
        assert ranges == sorted(ranges)
    for rows in counts:
        one, captured, launched = prediction.rounds(results, rows).values()
        assert prediction.bytes_ms(results, rows) < one[0] < captured[0] <= launched[0]
        assert one[1] < captured[1] <= launched[1]
    assert all(0 < least < most for least, most in prediction.prompt_parts(results).values())
