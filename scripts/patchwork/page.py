"""Renders docs/patches.md from the series. Reads and writes nothing."""

from __future__ import annotations

from patchwork.listing import TRAILERS, Series

PAGE = "docs/patches.md"
INTRODUCTION = """# Patches

Generated from `patches/series.yaml` by `./start.sh patches refresh` and `pin`; change nothing here.

The engine in `engine/` is portable. What is true of one kind of host only, and wrong or useless elsewhere, is a patch: a build exports the
pinned tree, applies the series to it and compares the tree id that comes out. A patch fits exactly or the build stops: its digest, its
header, every hunk at its line, the recorded tree after it. No fuzz, no offsets, no rejects.

| to | run |
| --- | --- |
| see the series | `./start.sh patches list` |
| prove it | `./start.sh patches verify` |
| change it | `./start.sh patches edit`, then commits in the work tree it names, one per patch, then `./start.sh patches refresh` |
| pin an engine you committed | `./start.sh patches pin` |
| rebase it, where `pin` says a patch no longer fits | `edit` names the `git rebase` to run in a fresh work tree; then `refresh` |
| build another engine | `ENGINE_REPO=<folder or URL> ENGINE_COMMIT=<full id> ./start.sh` |

A commit's message is its patch's header: a subject, the reason, and a last paragraph with {trailers}.

| kind | meaning |
| --- | --- |
| bits | the same output bits |
| drafts | only proposals change; the target still decides every token |
| reference | arithmetic changes: needs reference outputs of its own |
| structural | layout, checks, coordination; the same output bits |
| diagnostic | observation only; the same output bits |
| feature | behaviour of the API |

## The series

Engine: tree `{pin}`. With every patch: tree `{result}`.

| patch | what | switch, default | kind | measured effect | remove when |
| --- | --- | --- | --- | --- | --- |
{rows}
"""


def page(series: Series) -> str:
    rows = []
    reasons = []
    for patch in series.patches:
        story = patch.story
        switch = f"`{story.switch}`, {story.default}"
        cells = (f"`{story.name}`", story.what, switch, story.kind, story.effect, story.remove_when)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        reasons.append(f"\n### {story.name}\n\n{story.why}\n")
    trailers = ", ".join(f"`{label}:`" for label in TRAILERS)
    return (
        INTRODUCTION.format(trailers=trailers, pin=series.pin, result=series.result, rows="\n".join(rows)).rstrip()
        + "\n"
        + "".join(reasons)
    )
