"""Figures in documents are those of bench/results: renders each block between `<!-- figures NAME -->` and `<!-- end -->` from its JSON.

`--page` writes the blocks anew. Knows what a figure is called in its JSON, not how it was measured.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from checks.listing import ROOT

RESULTS = "bench/results"
KINDS = ("prose", "code", "count", "json")
DRAFTERS = {"MTP, depth 3": "mtp", "DFlash2, block 8": "dflash2 f7"}
DRAFTS_TOLD_APART = "drafts that held at or over, that failed under a confidence of"
BLOCK = re.compile(r"(?P<head><!-- figures (?P<name>[a-z]+) -->\n).*?(?P<end><!-- end -->\n)", re.DOTALL)


def results(root: Path, name: str) -> Any:
    return json.loads((root / RESULTS / name).read_text(encoding="utf-8"))


def table(rows: Iterable[Iterable[str]]) -> str:
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, re.sub(r"[^|]+", " --- ", head), *others, ""])


def speeds(root: Path) -> str:
    """What the README says of the embedded checkpoint on a CPU."""
    told, reuse, start = results(root, "speed.json")["results"], results(root, "reuse.json"), results(root, "start.json")["results"]
    ratio = {name: f"{of['ratio']:.1f}" for name, of in told.items() if "ratio" in of}
    drafted = ", ".join(ratio[f"drafted {kind}"] for kind in KINDS)
    plain, api = told["transformers"], told["api"]
    rows = [
        ("what", "result", "file in `bench/results`"),
        ("speculative decoding (DFlash2) against none, greedy: prose, code, counting, JSON", f"{drafted} times as fast", "`speed.json`"),
        (
            "four requests together against one after the other, tokens a second",
            f"{ratio['four together']} times as fast; {ratio['four together drafted']} if all are drafted",
            "`speed.json`",
        ),
        (
            f"decoding without drafts against `generate` of transformers, same weights ({plain['equal_replies']} of {plain['pairs']} "
            "replies equal, which is not promised)",
            f"{ratio['transformers']} times as fast",
            "`speed.json`",
        ),
        (
            f"time to the first token of a conversation's next turn, {reuse['prompt_tokens']:,} tokens: from the prefix cache against cold",
            f"{reuse['median_speedup']:.0f} times as fast",
            "`reuse.json`",
        ),
        (
            "what the API adds to the first token; what it takes for a round of four streams",
            f"{api['first_token_added_ms']:.1f} ms; {api['wall_ms_per_round_of_all_streams']:.2f} ms",
            "`speed.json`",
        ),
        (
            "`./start.sh` of an installed embedded profile until it is live; `doctor`",
            f"{start['start']['median_s']:.1f} s; {start['doctor']['median_s']:.1f} s",
            "`start.json`",
        ),
    ]
    return table(rows)


def drafters(root: Path) -> str:
    """What the embedded checkpoint's drafters are worth."""
    told = results(root, "drafting.json")
    greedy, means = told["confidence"]["greedy"], told["mean_tokens_per_round"]["greedy"]
    rows = [("drafter", "tokens a round: prose, code, count, JSON", "mean", "AUC", DRAFTS_TOLD_APART)]
    for title, name in DRAFTERS.items():
        rounds, trust = (told["results"][f"{kind} greedy"][name]["tokens_per_round"] for kind in KINDS), greedy[name]
        held = sum(of_bin for _, of_bin in trust["bins"])
        failed = sum(all_of_bin for all_of_bin, _ in trust["bins"]) - held
        shares = f"{trust['held_over']:.0%}, {trust['failed_under']:.0%}: {trust['threshold']:.2f}".replace("%", " %")
        auc = f"{trust['auc']:.2f} ({held} held, {failed} failed)"
        rows.append((title, ", ".join(f"{one:.2f}" for one in rounds), f"{means[name]:.2f}", auc, shares))
    return table(rows)


PAGES: dict[str, dict[str, Callable[[Path], str]]] = {"README.md": {"speeds": speeds}, "embedded/README.md": {"drafters": drafters}}


def rendered(root: Path, page: str) -> str:
    """The page with each of its blocks as its JSON has it. KeyError for a block nobody renders."""
    text = (root / page).read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: found["head"] + PAGES[page][found["name"]](root) + found["end"], text)


def findings(root: Path) -> Iterator[str]:
    for page, blocks in PAGES.items():
        text = (root / page).read_text(encoding="utf-8")
        there = [found["name"] for found in BLOCK.finditer(text)]
        if there != list(blocks):
            yield f"{page}: blocks of figures {there}; needed: {list(blocks)}"
        elif rendered(root, page) != text:
            yield f"{page}: figures are not those of {RESULTS}: PYTHONPATH=scripts python -m checks.figures --page"


if __name__ == "__main__":
    if sys.argv[1:] == ["--page"]:
        for page in PAGES:
            (ROOT / page).write_text(rendered(ROOT, page), encoding="utf-8")
    found = list(findings(ROOT))
    print("\n".join(found))
    sys.exit(bool(found))
