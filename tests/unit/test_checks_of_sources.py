"""The checks of scripts/check.sh fail where they should: each is given a small tree that breaks one rule."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checks import budgets, figures, links, locks, words
from checks.listing import ROOT

DIGEST = "a" * 64


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "made-by-nobody" / "checkout"
    root.mkdir(parents=True)
    subprocess.run(["git", "-C", str(root), "init", "--quiet"], check=True)
    return root


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def function(lines: int, name: str = "long") -> str:
    return f"def {name}(): ...\n" if lines == 1 else f"def {name}():\n" + "    pass\n" * (lines - 1)


def test_a_tree_within_its_budgets_has_no_findings(tree: Path):
    write(tree, "engine/lockstep/a.py", "# line\n" * 400)
    write(tree, "engine/lockstep/kernels/b.py", "# line\n" * 600)
    write(tree, "scripts/recipe/c.py", function(30))
    write(tree, "tests/test_d.py", function(60))
    write(tree, "start.sh", "#!/usr/bin/env bash\n" + "true\n" * 99)
    assert budgets.overruns(tree) == []


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("engine/lockstep/a.py", "# line\n" * 401, "401 lines, budget 400"),
        ("engine/lockstep/kernels/a.py", "# line\n" * 601, "601 lines, budget 600"),
        ("tests/test_a.py", function(61), "test_a.py:1 long: 61 lines, budget 60"),
        ("scripts/recipe/a.py", "class A:\n    def long(self):\n" + "        pass\n" * 60 + function(1, "f") * 9, "a.py:2 long: 61 lines"),
        ("scripts/recipe/a.py", "".join(function(31, f"f{n}") for n in range(2)), "90th percentile"),
        ("start.sh", "true\n" * 101, "start.sh: 101 lines, budget 100"),
        ("bin/start", "#!/usr/bin/env bash\n" + "true\n" * 100, "bin/start: 101 lines"),
        ("scripts/recipe/a.py", "def broken(:\n", "a.py:1:"),
    ],
)
def test_an_overrun_is_named_with_its_budget(tree: Path, name: str, text: str, part: str):
    write(tree, name, text)
    assert [part in line for line in budgets.overruns(tree)] == [True]


def test_whole_packages_and_all_shell_scripts_have_budgets(tree: Path):
    for number in range(13):
        write(tree, f"scripts/recipe/f{number}.py", "# line\n\n" * 200)
        write(tree, f"scripts/g{number}.sh", "true\n" * 40)
    assert budgets.overruns(tree) == ["all shell scripts: 520 lines, budget 400"]
    for number in range(13):
        write(tree, f"scripts/recipe/f{number}.py", "# line\n" * 400)
    assert budgets.overruns(tree) == ["scripts/recipe: 5,200 lines, budget 5,000", "all shell scripts: 520 lines, budget 400"]


@pytest.mark.parametrize(
    ("lengths", "expected"), [([], 0), ([5], 5), ([*range(1, 11)], 9), ([1] * 89 + [50] * 11, 50), ([1] * 90 + [50] * 10, 1)]
)
def test_nine_of_ten_functions_do_not_exceed_the_percentile(lengths: list[int], expected: int):
    assert budgets.percentile(lengths) == expected


def test_files_that_git_ignores_have_no_budget(tree: Path):
    write(tree, ".gitignore", "made/\n")
    write(tree, "made/a.py", "# line\n" * 1000)
    assert budgets.overruns(tree) == []


# Put together here, so that this file holds none of them.
HOST = "pypi" + ".org"
WORDS = {
    "token": "hf_" + "a" * 34,
    "key": "sk-" + "b" * 40,
    "private": "-----BEGIN " + "RSA PRIVATE KEY-----",
    "home": "/home" + "/alice/models",
    "host": f"https://{HOST}/simple",
    "longer host": "files.python" + "hosted.org",
}


@pytest.mark.parametrize("what", WORDS)
def test_a_word_that_must_not_be_here_is_found_and_not_repeated(tree: Path, what: str):
    write(tree, "docs/page.md", f"fine\nsee {WORDS[what]} there\n")
    found = list(words.findings(tree))
    assert len(found) == 1
    assert found[0].startswith("docs/page.md:2: ")
    assert WORDS[what] not in found[0]


def test_a_path_of_the_machine_is_found_but_common_folders_are_not(tree: Path):
    write(tree, "README.md", f"cd {tree.parent}/other\ncd /tmp/x\ncd /opt/venv/bin\ncd ~/.cache\n$HOME/.config\n")
    assert list(words.findings(tree)) == ["README.md:1: a path of this machine"]


def test_requirements_name_no_index(tree: Path):
    write(tree, "requirements/a.lock", f"--index-url https://example.test/simple\na==1 --hash=sha256:{DIGEST}\n--find-links wheels\n")
    assert {line.split(":")[1] for line in words.findings(tree)} == {"1", "3"}


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("a==1", "a==1"),
        (f"a>=1 --hash=sha256:{DIGEST}", "a>=1"),
        ("a==1 --hash=md5:00", "a==1"),
        (f"a @ file:///a.whl --hash=sha256:{DIGEST}", "a @ file:///a.whl"),
        ("-e .", "-e ."),
    ],
)
def test_a_lock_entry_without_version_or_digest_is_refused_by_name(entry: str, named: str):
    with pytest.raises(ValueError, match=f"^{re.escape(named)}$"):
        locks.read_lock(f"whole==1 --hash=sha256:{DIGEST}\n{entry}\n")


def test_a_lock_lists_every_package_that_its_packages_need():
    from packaging.requirements import Requirement

    full = locks.read_lock((ROOT / "requirements" / "host.lock").read_text())
    assert list(locks.missing([Requirement("requests")], full)) == []
    del full["urllib3"]
    lacks = list(locks.missing([Requirement("requests")], full))
    assert len(lacks) == 1
    assert lacks[0].startswith("urllib3")
    assert "for requests (locked: nothing)" in lacks[0]


PLANTED = {
    "sched imports torch": ("engine/lockstep/sched/planted.py", "import torch\n\nprint(torch)\n"),
    "core imports the model": ("engine/lockstep/core/planted.py", "from lockstep.model import glm\n\nprint(glm)\n"),
    "the recipe imports the engine": ("scripts/recipe/planted.py", "import lockstep\n\nprint(lockstep)\n"),
    "a step imports Docker": ("scripts/recipe/steps/planted.py", "import docker\n\nprint(docker)\n"),
    "a check starts a process": ("scripts/recipe/checks/planted.py", "import subprocess\n\nprint(subprocess)\n"),
    "a layer imports triton": ("engine/lockstep/layers/planted.py", "import triton\n\nprint(triton)\n"),
    "a verb imports rich": ("scripts/recipe/verbs/planted.py", "import rich\n\nprint(rich)\n"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_an_import_against_the_direction_is_caught(tmp_path: Path, what: str):
    name, text = PLANTED[what]
    for half in ("engine", "scripts"):
        # Without what other tests of this run may be compiling beside it.
        shutil.copytree(ROOT / half, tmp_path / half, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    write(tmp_path, name, text)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}/engine:{tmp_path}/scripts", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert name.removeprefix("engine/").removeprefix("scripts/").removesuffix(".py").replace("/", ".") in done.stdout


@pytest.mark.parametrize(
    "text", ["import torch.distributed\n", "from torch import distributed\n", "from torch.utils.cpp_extension import load\n"]
)
def test_talking_to_other_ranks_outside_the_exchange_is_caught(tmp_path: Path, text: str):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, status in (("engine/lockstep/layers/planted.py", 1), ("engine/lockstep/run/exchange.py", 0)):
        write(tmp_path, name, text)
        argv = [str(Path(sys.executable).parent / "ruff"), "check", "--no-cache", "--quiet", "--select", "TID251", name]
        assert subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False).returncode == status


def test_links_and_paths_that_lead_nowhere_are_named_and_others_are_not(tree: Path):
    write(tree, "engine/lockstep/run/ranks.py", "")
    write(tree, "patches/0001-a.patch", "+++ b/lockstep/run/ring.py\n")
    write(tree, "engine/lockstep/server/health.py", '@router.get("/health", responses={})\n@router.get(\n    "/v1/r/{id}"\n)\n')
    write(tree, "docs/structures.md", "```\nengine/   a\n  lockstep/   b\n    run/   c\n    server/   f\npatches/   d\ndocs/   e\n```\n")
    good = "[a](docs/structures.md) [c](#a-part-and-more) [b](https://example.test/c) `run/ranks` `run/ring.py` `/health` `/v1/r`"
    write(tree, "README.md", f"# A part, and `more`\n{good}\n")
    assert list(links.findings(tree)) == []
    write(tree, "README.md", "[a](docs/gone.md), [b](docs/structures.md#part), `run/gone.py`, `ranks.py:30`, `GET /health/live`\n")
    write(tree, "docs/structures.md", "```\nengine/   a\n  lockstep/   b\n    gone/   c\n    server/   f\npatches/   d\ndocs/   e\n```\n")
    assert list(links.findings(tree)) == [
        "README.md: the link docs/gone.md leads nowhere",
        "README.md: the link docs/structures.md#part leads nowhere",
        "README.md: run/gone.py is not there",
        "README.md: there is no route /health/live",
        "docs/structures.md: the map has no line for engine/lockstep/run/",
        "docs/structures.md: the map has a line for engine/lockstep/gone/, which is not there",
    ]


def test_a_figure_that_is_not_the_measured_one_is_named(tree: Path):
    for name in ("README.md", "embedded/README.md", *(f"{figures.RESULTS}/{of}.json" for of in ("speed", "reuse", "start", "drafting"))):
        write(tree, name, (ROOT / name).read_text(encoding="utf-8"))
    assert list(figures.findings(tree)) == []
    measured = (tree / figures.RESULTS / "reuse.json").read_text()
    write(tree, f"{figures.RESULTS}/reuse.json", measured.replace('"median_speedup": ', '"median_speedup": 9'))
    write(tree, "embedded/README.md", "no figures\n")
    assert [line.partition(":")[0] for line in figures.findings(tree)] == ["README.md", "embedded/README.md"]
