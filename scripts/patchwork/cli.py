"""`patches list|verify|edit|refresh|pin`: shows and changes the patch series. Knows the words, not how it is done."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from failure import Failure
from patchwork import engine, listing, patchset, worktree
from patchwork.listing import Series

Say = Callable[[str], None]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failure("E_CONFIG", found=f"patches: {message}", needed=self.format_usage().strip())


def parser() -> argparse.ArgumentParser:
    made = _Parser(prog="./start.sh patches", description=__doc__)
    words = made.add_subparsers(dest="word", required=True)
    shown = words.add_parser("list", help="the pin and every patch with its story")
    shown.add_argument("--json", action="store_true", help="as one JSON object")
    words.add_parser("verify", help="prove that the series applies exactly to the pinned tree and gives the recorded trees")
    words.add_parser("edit", help="open a work tree with one commit per patch")
    words.add_parser("refresh", help="write the series back from that work tree")
    words.add_parser("pin", help="pin the committed engine/ and write the resulting trees")
    return made


def run(root: Path, work: Path, words: Sequence[str], say: Say) -> int:
    """0 where it was done; `work` is the folder that `edit` opens. Raises Failure E_CONFIG, E_PIN or E_PATCHES."""
    chosen = parser().parse_args(words)
    series = listing.read(root / listing.FOLDER)
    if chosen.word == "list":
        _list(series, say, as_json=chosen.json)
    elif chosen.word == "verify":
        patchset.verify(engine.release(root, series))
        say(f"{len(series.patches)} patches apply exactly to {series.pin} and give {series.result}")
    elif chosen.word == "edit":
        _edit(root, series, work, say)
    elif chosen.word == "refresh":
        _tell(worktree.refresh(root, series, work), say)
    else:
        _tell(worktree.pin(root, series), say)
    return 0


def _list(series: Series, say: Say, *, as_json: bool) -> None:
    if as_json:
        rows = [{**asdict(patch.story), "sha256": patch.sha256, "tree": patch.tree_id} for patch in series.patches]
        say(json.dumps({"pin": series.pin, "result": series.result, "patches": rows}))
        return
    say(f"pin     {series.pin}")
    for patch in series.patches:
        story = patch.story
        say(f"{story.name}  [{story.kind}]  {story.what}")
        say(f"        switch {story.switch}, default {story.default}; effect: {story.effect}; remove when {story.remove_when}")
    say(f"result  {series.result}")


def _edit(root: Path, series: Series, work: Path, say: Say) -> None:
    has_moved = worktree.edit(root, series, work)
    say(f"work tree: {work}  (branch {worktree.BRANCH}, one commit per patch)")
    if has_moved:
        branches = f"{worktree.ONTO} {worktree.PINNED} {worktree.BRANCH}"
        say(f"the engine has moved on since it was pinned: git -C {work} rebase --onto {branches}")
    say("change commits there, then ./start.sh patches refresh")


def _tell(changed: Sequence[str], say: Say) -> None:
    say(f"written: {', '.join(sorted(changed))}" if changed else "nothing changed")
