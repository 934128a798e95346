"""Takes one cure of exactness away at a time and sees its test fail: the list is tests/mutations.toml, the page docs/mutations.md.

Knows texts and tests, not what they mean. Works in a copy of the tree; runs by hand, since it takes many minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from checks.listing import ROOT, files

LIST, PAGE = Path("tests/mutations.toml"), Path("docs/mutations.md")
TREE = ("engine", "scripts", "tests", "embedded", "pyproject.toml")
LAST_RUN = "Last run: "
ASSERTED = r"^E +(assert |AssertionError|Failed: DID NOT RAISE)"
LIMIT_S = 900


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` becomes `new` in `file`, where it stands once; then `test` must fail, with a line that `says` (a pattern) matches.

    `member` is the part of the model or server at risk, `fault` what would go wrong there, `cure` the place that prevents it and
    `change` the mutation in words.
    """

    name: str
    member: str
    fault: str
    cure: str
    change: str
    file: str
    old: str
    new: str
    test: str
    says: str = ASSERTED


@dataclass(frozen=True, slots=True)
class Spared:
    """A member no mutation can reach here, and why."""

    member: str
    why: str


def read(path: Path) -> tuple[list[Mutation], list[Spared]]:
    """Both lists. Raises TypeError for an entry with an unknown or missing field."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Mutation(**entry) for entry in content["mutation"]], [Spared(**entry) for entry in content["spared"]]


def page(mutations: Sequence[Mutation], spared: Sequence[Spared], last_run: str) -> str:
    """The document, from the list."""
    lines = [
        "# Mutations: what is lost when a cure is taken away",
        "",
        "Generated from `tests/mutations.toml`. [exactness.md](exactness.md) says what is promised and how it is kept; this page lists",
        "the cures one by one. In each row the cure is taken out of a copy of the sources, by replacing one text with another, and the",
        "test named there must then fail in an assertion, not by an error on the way.",
        "",
        "`PYTHONPATH=scripts python -m checks.mutations` does all of it: first the named tests on the sources as they are, then each",
        "mutation. `--only WORD` does the rows whose name holds WORD, `--record` writes this page anew. It is not part of CI, whose unit",
        "tests check that every text still stands where the list says and that every test exists.",
        "",
        LAST_RUN + last_run,
        "",
        "| name | member | fault | cure | mutation | test that fails |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in mutations:
        place, _, function = one.test.removeprefix("tests/").partition("::")
        cells = (f"`{one.name}`", one.member, one.fault, f"`{one.cure}`", one.change, f"`{place}`: {function.replace('_', ' ')}")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", "Members that no mutation can reach in this engine:", "", "| member | why |", "| --- | --- |"]
    lines += [f"| {one.member} | {one.why} |" for one in spared]
    return "\n".join([*lines, ""])


def stale(root: Path) -> Iterator[str]:
    """What of the list no longer holds for the tree at `root`, one line each."""
    mutations, spared = read(root / LIST)
    names = [one.name for one in mutations]
    yield from (f"{name}: used twice" for name in sorted({name for name in names if names.count(name) > 1}))
    for one in mutations:
        found = (root / one.file).read_text(encoding="utf-8").count(one.old) if (root / one.file).is_file() else 0
        if found != 1:
            yield f"{one.name}: its old text stands {found} times in {one.file}; needed: once"
        cured = Path("engine/lockstep") / one.cure.partition(":")[0]
        function = one.cure.rpartition(":")[2].rpartition(".")[2]
        if not (root / cured).is_file() or not re.search(rf"(def|class) {function}\b", (root / cured).read_text(encoding="utf-8")):
            yield f"{one.name}: there is no {one.cure}"
        place, _, function = one.test.partition("::")
        if not (root / place).is_file() or f"def {function.partition('[')[0]}(" not in (root / place).read_text(encoding="utf-8"):
            yield f"{one.name}: there is no test {one.test}"
    told = [line for line in (root / PAGE).read_text(encoding="utf-8").splitlines() if not line.startswith(LAST_RUN)]
    if told != [line for line in page(mutations, spared, "").splitlines() if not line.startswith(LAST_RUN)]:
        yield f"{PAGE} is not what {LIST} renders: run python -m checks.mutations --page"


def copied(root: Path, target: Path) -> None:
    """The files a test needs, without what git ignores."""
    for path in files(root):
        if path.parts[0] in TREE:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, target / path)


def tested(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """pytest's exit status and output in `tree`; 124 if it took longer than `LIMIT_S`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{tree}/engine"}
    argv = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:randomly", *tests]
    try:
        done = subprocess.run(argv, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return 124, ""
    return done.returncode, done.stdout + done.stderr


def is_killed(one: Mutation, tree: Path) -> tuple[bool, str]:
    """Apply, test, put back. True if the test failed as it says; and the line that shows it, or pytest's end."""
    path = tree / one.file
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace(one.old, one.new), encoding="utf-8")
    status, output = tested(tree, [one.test])
    path.write_text(source, encoding="utf-8")
    shown = re.search(one.says, output, re.MULTILINE)
    if status == 1 and shown and "FAILED" in output:
        return True, output[shown.start() :].splitlines()[0][:150]
    return False, f"exit status {status}: " + " / ".join(output.splitlines()[-4:])


def run(root: Path, mutations: Sequence[Mutation]) -> str | None:
    """Do them all, telling each. What to record, or None if one survived."""
    began = time.monotonic()
    argv = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(root, tree)
        status, output = tested(tree, sorted({one.test for one in mutations}))
        if status:
            print(f"the tests fail on the sources as they are:\n{output}")
            return None
        killed = 0
        for one in mutations:
            dead, shown = is_killed(one, tree)
            killed += dead
            print(f"{'killed  ' if dead else 'SURVIVED'} {one.name}: {shown}", flush=True)
    print(f"{killed} of {len(mutations)} killed")
    if killed < len(mutations):
        return None
    minutes = (time.monotonic() - began) / 60
    return f"{time.strftime('%Y-%m-%d')}, commit {commit}, {killed} of {len(mutations)} killed in {minutes:.0f} minutes."


def main(argv: Sequence[str]) -> int:
    """Exit status 0 if every mutation asked for was killed."""
    parser = argparse.ArgumentParser(prog="checks.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--record", action="store_true", help="write the page, with this run as the last one")
    parser.add_argument("--page", action="store_true", help="only write the page; the last run stays as it is told there")
    options = parser.parse_args(argv)
    mutations, spared = read(ROOT / LIST)
    if options.page:
        told = (ROOT / PAGE).read_text(encoding="utf-8") if (ROOT / PAGE).is_file() else ""
        last = next((line.removeprefix(LAST_RUN) for line in told.splitlines() if line.startswith(LAST_RUN)), "never.")
        (ROOT / PAGE).write_text(page(mutations, spared, last), encoding="utf-8")
        return 0
    done = run(ROOT, [one for one in mutations if options.only in one.name])
    if done and options.record and not options.only:
        (ROOT / PAGE).write_text(page(mutations, spared, done), encoding="utf-8")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
