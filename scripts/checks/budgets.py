"""Size budgets of files, functions and packages. Reads sources only, imports none."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checks.listing import ROOT, python_files, shell_scripts

FILE_LINES = 400
KERNEL_FILE_LINES = 600
KERNELS = Path("engine/lockstep/kernels")
FUNCTION_LINES = 60
PERCENTILE_LINES = 30
# Lines with something on them: blank ones are the formatter's.
PACKAGE_LINES = {
    Path("engine/lockstep"): 15_000,
    Path("engine/checkpoints"): 900,
    Path("engine/grammars"): 900,
    Path("engine/peers"): 200,
    Path("engine/pixels"): 320,
    Path("engine/tuning"): 500,
    Path("scripts/recipe"): 5_000,
    Path("scripts/verify"): 1_000,
    Path("scripts/patchwork"): 750,
}
SHELL_FILE_LINES = 100
SHELL_LINES = 400


@dataclass(frozen=True)
class Function:
    place: str
    lines: int


def functions(source: str, path: Path) -> Iterator[Function]:
    """Every function of a file, nested ones too, without decorators. Raises SyntaxError."""
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(f"{path}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)


def percentile(lengths: list[int]) -> int:
    """Smallest length that nine of ten functions do not exceed; 0 for none."""
    ordered = sorted(lengths)
    return ordered[max(0, -(-len(ordered) * 9 // 10) - 1)] if ordered else 0


def _over(what: str, lines: int, limit: int) -> Iterator[str]:
    if lines > limit:
        yield f"{what}: {lines:,} lines, budget {limit:,}"


def _python(root: Path) -> Iterator[str]:
    packages = dict.fromkeys(PACKAGE_LINES, 0)
    lengths: dict[Path, list[int]] = {package: [] for package in packages}
    for path in python_files(root):
        source = (root / path).read_text(encoding="utf-8")
        lines = source.splitlines()
        yield from _over(str(path), len(lines), KERNEL_FILE_LINES if path.is_relative_to(KERNELS) else FILE_LINES)
        try:
            found = list(functions(source, path))
        except SyntaxError as error:
            yield f"{path}:{error.lineno}: {error.msg}"
            continue
        for function in found:
            yield from _over(function.place, function.lines, FUNCTION_LINES)
        for package in packages:
            if path.is_relative_to(package):
                packages[package] += sum(1 for line in lines if line.strip())
                lengths[package] += [function.lines for function in found]
    for package, total in packages.items():
        yield from _over(str(package), total, PACKAGE_LINES[package])
        yield from _over(f"{package}: 90th percentile of its functions", percentile(lengths[package]), PERCENTILE_LINES)


def _shell(root: Path) -> Iterator[str]:
    total = 0
    for path in shell_scripts(root):
        lines = len((root / path).read_text(encoding="utf-8").splitlines())
        yield from _over(str(path), lines, SHELL_FILE_LINES)
        total += 0 if path.is_relative_to("tests") else lines
    yield from _over("all shell scripts", total, SHELL_LINES)


def overruns(root: Path) -> list[str]:
    """One line for each budget that is overrun."""
    return [*_python(root), *_shell(root)]


if __name__ == "__main__":
    found = overruns(ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
