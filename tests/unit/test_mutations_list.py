"""The list of mutations fits the tree it is for: its texts, cures and tests are where it says, and its page says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks import mutations
from checks.listing import ROOT


def test_every_text_cure_and_test_of_the_list_is_there_and_the_page_says_the_same():
    assert list(mutations.stale(ROOT)) == []


def entry(**fields: str) -> mutations.Mutation:
    plain = dict.fromkeys(("member", "fault", "change"), "x")
    base = {"name": "sum", "cure": "a.py:f", "file": "engine/lockstep/a.py", "old": "1 + 1", "new": "3", "test": "tests/test_a.py::test_f"}
    return mutations.Mutation(**(plain | base | fields))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "engine/lockstep").mkdir(parents=True)
    (tmp_path / "engine/lockstep/a.py").write_text("def f():\n    return 1 + 1\n")
    (tmp_path / "tests/test_a.py").write_text(
        "from lockstep.a import f\n\n\ndef test_f():\n    assert f() == 2\n\n\ndef test_g():\n    f()\n"
    )
    return tmp_path


def test_a_mutation_is_killed_by_an_assertion_and_its_file_put_back(tree: Path):
    source = (tree / "engine/lockstep/a.py").read_text()
    assert mutations.is_killed(entry(), tree) == (True, "E   assert 3 == 2")
    assert (tree / "engine/lockstep/a.py").read_text() == source


@pytest.mark.parametrize("fields", [{"test": "tests/test_a.py::test_g"}, {"new": "1 / 0"}, {"test": "tests/test_a.py::test_none"}])
def test_a_test_that_passes_or_breaks_on_the_way_kills_nothing(tree: Path, fields: dict[str, str]):
    assert not mutations.is_killed(entry(**fields), tree)[0]
