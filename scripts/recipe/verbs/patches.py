"""`patches list|verify|edit|refresh|pin`: shows and changes the patch series. Knows the words, not how it is done."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from recipe import engine_pin, patch_series, patch_work, patchset
from recipe.failure import Failure
from recipe.job import Job
from recipe.patch_series import Series
from recipe.ui import Ui

WORK = "patches"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failure("E_CONFIG", found=f"patches: {message}", needed=self.format_usage().strip())


def parser() -> argparse.ArgumentParser:
    made = _Parser(prog="./start.sh patches", description=__doc__)
    words = made.add_subparsers(dest="word", required=True)
    listing = words.add_parser("list", help="the pin and every patch with its story")
    listing.add_argument("--json", action="store_true", help="as one JSON object")
    words.add_parser("verify", help="prove that the series applies exactly to the pinned tree and gives the recorded trees")
    words.add_parser("edit", help="open a work tree with one commit per patch")
    words.add_parser("refresh", help="write the series back from that work tree")
    words.add_parser("pin", help="pin the committed engine/ and write the resulting trees")
    return made


def run(job: Job, words: Sequence[str]) -> int:
    """0 where it was done. Raises Failure E_CONFIG, E_PIN or E_PATCHES."""
    chosen = parser().parse_args(words)
    root, ui = job.config.root, job.ui
    series = patch_series.read(root / patch_series.FOLDER)
    work = job.config.folder("STATE_DIR") / WORK
    if chosen.word == "list":
        _list(series, ui, as_json=chosen.json)
    elif chosen.word == "verify":
        patchset.verify(engine_pin.release(root, series))
        ui.line(f"{len(series.patches)} patches apply exactly to {series.pin} and give {series.result}")
    elif chosen.word == "edit":
        _edit(root, series, work, ui)
    elif chosen.word == "refresh":
        _tell(patch_work.refresh(root, series, work), ui)
    else:
        _tell(patch_work.pin(root, series), ui)
    return 0


def _list(series: Series, ui: Ui, *, as_json: bool) -> None:
    if as_json:
        rows = [{**asdict(patch.story), "sha256": patch.sha256, "tree": patch.tree_id} for patch in series.patches]
        ui.line(json.dumps({"pin": series.pin, "result": series.result, "patches": rows}))
        return
    ui.line(f"pin     {series.pin}")
    for patch in series.patches:
        story = patch.story
        ui.line(f"{story.name}  [{story.kind}]  {story.what}")
        ui.line(f"        switch {story.switch}, default {story.default}; effect: {story.effect}; remove when {story.remove_when}")
    ui.line(f"result  {series.result}")


def _edit(root: Path, series: Series, work: Path, ui: Ui) -> None:
    has_moved = patch_work.edit(root, series, work)
    ui.line(f"work tree: {work}  (branch {patch_work.BRANCH}, one commit per patch)")
    if has_moved:
        branches = f"{patch_work.ONTO} {patch_work.PINNED} {patch_work.BRANCH}"
        ui.line(f"the engine has moved on since it was pinned: git -C {work} rebase --onto {branches}")
    ui.line("change commits there, then ./start.sh patches refresh")


def _tell(changed: Sequence[str], ui: Ui) -> None:
    ui.line(f"written: {', '.join(sorted(changed))}" if changed else "nothing changed")
