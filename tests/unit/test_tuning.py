"""Launch tables: a choice keeps the default's bits and is clearly faster; a table that is partial or of another place is not used."""

import importlib
import json
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import msgspec
import pytest
import torch
from torch import Tensor

import lockstep.kernels
from lockstep.config.launch_table import Entry, LaunchTable, Origin, TableError
from lockstep.kernels import tuned
from lockstep.kernels.tuned import Configuration, Tuned
from lockstep.run.tables import use_table
from tuning import command
from tuning.__main__ import main
from tuning.benches import BENCHES
from tuning.poison import poisoned
from tuning.search import Timing, points, search, timing_of

ROOT = Path(__file__).parents[2]
DEFAULT = {"tile": 1}


@dataclass
class Stand:
    """A bench whose configurations are fast, wrong or broken as told."""

    us: dict[int, float]
    wrong: dict[int, tuple[int, int]] = field(default_factory=dict)
    lazy: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()
    spilling: frozenset[int] = frozenset()
    spread: float = 0.001
    seeds: Sequence[int] = (1, 2)
    rows: tuple[int, int] = (1, 8)
    timed: list[int] = field(default_factory=list)

    def allowed(self, configuration: Configuration) -> bool:
        return configuration["tile"] != 9

    def compile(self, configuration: Configuration) -> str:
        if configuration["tile"] in self.broken:
            raise RuntimeError('kernel.cu(3): error: identifier "y" is undefined')
        return "spills 8 bytes a thread" if configuration["tile"] in self.spilling else ""

    def run(self, configuration: Configuration, seed: int, rows: int) -> Tensor:
        out = torch.empty(rows, 4)
        written = out[:, :3] if configuration["tile"] in self.lazy else out
        written[:] = seed + (self.wrong.get(configuration["tile"]) == (seed, rows))
        return out

    def time(self, configuration: Configuration) -> Timing:
        self.timed.append(configuration["tile"])
        return Timing(self.us[configuration["tile"]], self.spread)


def choices(*tiles: int) -> list[dict[str, int]]:
    return [{"tile": tile} for tile in tiles]


def test_the_fastest_with_the_bits_of_the_default_is_chosen():
    bench = Stand({1: 10.0, 2: 9.0, 3: 8.0})
    found = search(bench, DEFAULT, choices(2, 3))
    assert (found.configuration, found.timing.us, found.default.us, found.tried) == ({"tile": 3}, 8.0, 10.0, 2)
    assert bench.timed.count(3) == bench.timed.count(1) == 2, "winner and default are timed again"


@pytest.mark.parametrize("place", [(1, 1), (2, 8)])
def test_one_with_other_bits_at_any_seed_or_row_count_is_refused_and_never_timed(place: tuple[int, int]):
    bench = Stand({1: 10.0, 2: 1.0}, wrong={2: place})
    found = search(bench, DEFAULT, choices(2))
    assert found.configuration == DEFAULT
    assert f"other bits: seed {place[0]}, {place[1]} rows" in found.refused[0].reason
    assert 2 not in bench.timed


def test_one_that_leaves_memory_unwritten_is_refused():
    found = search(Stand({1: 10.0, 2: 1.0}, lazy=frozenset({2})), DEFAULT, choices(2))
    assert found.configuration == DEFAULT
    assert "not all was written" in found.refused[0].reason
    with poisoned():
        assert torch.empty(3).isnan().all()


def test_one_that_the_compiler_had_no_registers_for_is_refused_unrun():
    bench = Stand({1: 10.0}, spilling=frozenset({2}))
    found = search(bench, DEFAULT, choices(2))
    assert found.configuration == DEFAULT
    assert found.refused[0].reason == "spills 8 bytes a thread"
    assert 2 not in bench.timed


def test_a_gain_below_two_percent_or_below_the_spread_is_none():
    assert search(Stand({1: 100.0, 2: 98.5}), DEFAULT, choices(2)).configuration == DEFAULT
    assert search(Stand({1: 100.0, 2: 90.0}, spread=0.2), DEFAULT, choices(2)).configuration == DEFAULT
    assert search(Stand({1: 100.0, 2: 90.0}), DEFAULT, choices(2)).configuration == {"tile": 2}


def test_one_that_does_not_compile_ends_the_search_with_the_compilers_words():
    with pytest.raises(RuntimeError, match='"y" is undefined'):
        search(Stand({1: 1.0}, broken=frozenset({2})), DEFAULT, choices(2))


def test_points_are_those_of_the_space_that_are_allowed():
    assert points({"tile": (1, 2, 9)}, DEFAULT, Stand({}).allowed) == [{"tile": 2}]
    assert timing_of([1.0, 2.0, 3.0, 4.0, 5.0]) == Timing(3.0, 1.0)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Tuned]:
    source = tmp_path / "made.cu"
    source.write_text("one")
    yield Tuned("made", source, {"tile": (1, 2)})
    del tuned.KERNELS["made"]


def test_every_space_can_be_searched():
    for module in pkgutil.walk_packages(lockstep.kernels.__path__, "lockstep.kernels."):
        importlib.import_module(module.name)
    assert set(BENCHES) == set(tuned.KERNELS)


def table(kernel: Tuned, *, complete: bool = True, tile: int = 2, **origin: object) -> LaunchTable:
    made = {
        "build": "0" * 16,
        "gpu": "cpu",
        "capability": "cpu",
        "driver": "",
        "torch": "2",
        "nvrtc": "",
        "dense": "bf16",
        "ranks": 1,
    } | origin
    entry = Entry("made", ["bf16", 64], kernel.digest, {"tile": tile}, {"tile": 1}, 8.0, 9.0, 0.01, 1)
    return LaunchTable(complete, msgspec.convert(made, Origin), "2026-01-02T03:04:05Z", [entry])


def test_launches_run_as_a_table_says(kernel: Tuned, tmp_path: Path):
    assert kernel.configuration(("bf16", 64), {"tile": 1}) == {"tile": 1}
    command.save(tmp_path / "t.json", table(kernel))
    assert use_table(tmp_path / "t.json", "cpu", "bf16", 1) == ()
    assert kernel.configuration(("bf16", 64), {"tile": 1}) == {"tile": 2}
    assert kernel.configuration(("q4", 64), {"tile": 1}) == {"tile": 1}


def test_an_entry_of_another_source_or_outside_the_space_is_left_out_by_name(kernel: Tuned, tmp_path: Path):
    command.save(tmp_path / "t.json", table(kernel, tile=7))
    assert use_table(tmp_path / "t.json", "cpu", "bf16", 1) == ("made bf16 64: outside its space: tile=7",)
    command.save(tmp_path / "t.json", table(kernel))
    kernel.source.write_text("two")
    assert use_table(tmp_path / "t.json", "cpu", "bf16", 1) == ("made bf16 64: its source is another one now",)
    assert not kernel.chosen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"complete": False}, "not complete"),
        ({"gpu": "NVIDIA H200"}, "made for gpu NVIDIA H200, here cpu"),
        ({"dense": "q4", "ranks": 2}, "dense q4, here bf16; ranks 2, here 1"),
    ],
)
def test_a_partial_table_or_one_for_another_place_is_refused(kernel: Tuned, tmp_path: Path, change: dict[str, object], words: str):
    command.save(tmp_path / "t.json", table(kernel, **change))  # type: ignore[arg-type]
    with pytest.raises(TableError, match=words):
        use_table(tmp_path / "t.json", "cpu", "bf16", 1)


@pytest.mark.parametrize("text", ["", "{}", '{"complete": 1}'])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(TableError, match="needed: a table"):
        use_table(tmp_path / "t.json", "cpu", "bf16", 1)


def test_a_partial_table_of_the_same_origin_is_gone_on_with_and_no_other(kernel: Tuned, tmp_path: Path):
    part, path = table(kernel, complete=False), tmp_path / "t.json"
    command.save(path, part)
    assert command.gone_on_with(path, part.origin) == part.entries
    assert command.gone_on_with(path, table(kernel, gpu="another").origin) == []
    command.save(path, table(kernel))
    assert command.gone_on_with(path, part.origin) == [], "a whole one is made anew"
    assert command.gone_on_with(tmp_path / "none.json", part.origin) == []
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".part"] == []


def test_the_format_is_the_schema_in_the_repository(kernel: Tuned):
    schema = json.loads((ROOT / "launch_tables/schema.json").read_text())
    assert {name: value for name, value in schema.items() if name not in ("$schema", "title")} == msgspec.json.schema(LaunchTable)
    jsonschema.validate(msgspec.to_builtins(table(kernel)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(msgspec.to_builtins(table(kernel)) | {"more": 1}, schema)
    for path in (ROOT / "launch_tables").glob("*.json"):
        if path.name != "schema.json":
            jsonschema.validate(json.loads(path.read_text()), schema)


def test_the_command_on_a_cpu_finds_nothing_to_choose_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "t.json"
    assert main(["--model", str(ROOT / "embedded"), "--out", str(path), "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"table": str(path), "complete": True, "entries": 0, "changed": 0}
    assert use_table(path, "cpu", "bf16", 1) == ()
    assert main(["--model", str(tmp_path), "--out", str(path), "--device", "cpu"]) == 3
    assert "config.json" in json.loads(capsys.readouterr().out.splitlines()[-1])["cause"]
