"""A finished suite as table lines and as a JSON document. Pure; prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from verify.client import Server
from verify.suite import Result

SHOWN_WRONG = 3
HEADER = f"{'check':<26}{'right':>9}  {'needed':>7}  {'time':>8}  verdict"


def row(result: Result) -> list[str]:
    """The table line of one result, its notes, and its first wrong cases."""
    if result.skipped:
        return [f"{result.title:<26}{'-':>9}  {'-':>7}  {'-':>8}  skipped: {result.skipped}"]
    count = f"{result.right}/{result.asked}"
    verdict = "pass" if result.is_passed else "FAIL"
    lines = [f"{result.title:<26}{count:>9}  {f'>= {result.needed}':>7}  {f'{result.seconds:.1f} s':>8}  {verdict}"]
    lines += [f"    {note}" for note in result.notes]
    lines += [f"    {identity}: {reason}" for identity, reason in result.wrong[:SHOWN_WRONG]]
    if len(result.wrong) > SHOWN_WRONG:
        lines.append(f"    and {len(result.wrong) - SHOWN_WRONG} more")
    return lines


def verdict(suite: str, results: Sequence[Result]) -> str:
    """The closing sentence."""
    failed = [result.title for result in results if not result.is_passed]
    passed = sum(result.is_passed and not result.skipped for result in results)
    skipped = sum(bool(result.skipped) for result in results)
    counts = f"{passed} passed, {len(failed)} failed, {skipped} skipped"
    return f"{suite}: {counts}" + (f"; failed: {', '.join(failed)}" if failed else "")


def document(server: Server, suite: str, results: Sequence[Result]) -> dict[str, Any]:
    """Everything as JSON values: server, verdict, and every wrong case with its reason. Holds no key."""
    return {
        "suite": suite,
        "server": {"host": server.host, "port": server.port, "model": server.model, "context": server.context, "vision": server.has_vision},
        "passed": is_passed(results),
        "checks": [{**asdict(result), "passed": result.is_passed} for result in results],
    }


def is_passed(results: Sequence[Result]) -> bool:
    """True if every check that ran passed, and at least one ran."""
    return all(result.is_passed for result in results) and any(not result.skipped for result in results)
