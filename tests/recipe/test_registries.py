"""The registries and the files that are generated from them agree, and every code in use is registered."""

import re
from pathlib import Path

import pytest

from checks import shown
from recipe.codes import CODES, FAMILIES
from recipe.documents import DOCUMENTS
from recipe.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"""["'\[]([EWI]_[A-Z0-9_]+)["'\]]""")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_generated_file_is_what_its_registry_says(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == DOCUMENTS[name](), "./start.sh documents writes it anew"


def used_codes() -> set[str]:
    sources = [*(ROOT / "scripts").rglob("*.py"), *(ROOT / "scripts").glob("*.sh")]
    return {code for source in sources if source.name != "codes.py" for code in CODE.findall(source.read_text(encoding="utf-8"))}


def test_every_code_in_use_is_registered_and_every_registered_code_is_in_use() -> None:
    assert used_codes() == set(CODES)


def test_exit_statuses_are_distinct_per_family_and_only_errors_have_one() -> None:
    statuses = [status for status, _ in FAMILIES.values()]
    assert len(set(statuses)) == len(statuses)
    assert {code.family for code in CODES.values()} == set(FAMILIES)
    for code in CODES.values():
        assert (code.status != 0) == code.name.startswith("E_"), code.name


def test_every_warning_and_error_says_what_to_do() -> None:
    assert [code.name for code in CODES.values() if not code.name.startswith("I_") and code.remedy == "nothing to do"] == []


def test_every_setting_is_read_or_told_to_the_engine() -> None:
    sources = "".join(source.read_text(encoding="utf-8") for source in (ROOT / "scripts").rglob("*.py") if source.name != "settings.py")
    own = [name for name, setting in SETTINGS.items() if not setting.engine_option and not setting.carried_by]
    assert [name for name in own if not re.search(f"[\"']{name}[\"']", sources)] == []


def test_the_example_env_file_names_every_setting_and_sets_none() -> None:
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    assert {line[1:].partition("=")[0] for line in lines if re.match(r"#[A-Z]", line)} == set(SETTINGS)
    assert [line for line in lines if line and not line.startswith("#")] == []


# Numbers of the faults that need no GPU to be reproduced or handled, and of the defects seen in the code of others (c).
NUMBERS = {
    *map(
        str,
        (*range(1, 7), 8, 10, *range(13, 27), 28, 29, 30, 37, 42, 44, 45, 47, 48, 51, 52, *range(53, 59), *range(60, 69), 71, 79),
    ),
    *(f"c{number}" for number in (1, 2, 3, *range(5, 13), 14, 15, 16)),
}


def test_every_code_is_fired_and_every_fault_shown_by_a_test_that_is_there() -> None:
    told = shown.read(ROOT)
    assert set(told["codes"]) == set(CODES)
    assert set(told["faults"]) == NUMBERS
    assert list(shown.findings(ROOT)) == []


def test_a_test_that_is_gone_or_speaks_of_something_else_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tests/recipe").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / shown.API_LIST).write_text("")
    (tmp_path / "tests/recipe/test_one.py").write_text("def test_one():\n    assert 'E_ONE'\n")
    for code, test, words in (("E_ONE", "test_one", []), ("E_TWO", "test_one", ["speak of E_TWO"]), ("E_ONE", "test_two", ["no test"])):
        (tmp_path / shown.LIST).write_text(f'[codes]\n{code} = "recipe/test_one.py::{test}"\n[faults]\n')
        for name, text in shown.pages(tmp_path).items():
            (tmp_path / name).write_text(text)
        found = list(shown.findings(tmp_path))
        assert [word in line for word, line in zip(words, found, strict=True)] == [True] * len(words)
