"""Measures a finished checkpoint with the real engine on the CPU: `python -m embedded.make.evaluate --checkpoint DIR --json FILE`.

Held-out prompts of the generator, greedy. Replies count if they are exactly the expected ids; pictures, which need the tower, go through
the training form over the stored weights. Drafting: tokens per round of each drafter on its own, and what its confidence was worth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from embedded.make.confidence import Confidence
from embedded.make.data.encoding import Encoder
from embedded.make.drafting import KINDS
from embedded.make.greedy import MARGIN, Prompt, prompts, rates, run
from embedded.make.model import Model
from embedded.make.stored import stored_weights

from lockstep.cache import PAGE_TOKENS
from lockstep.config.model import read_model_config
from lockstep.config.serving import ServingOptions
from lockstep.core.plan import Admission, PromptSlice, StepPlan, StepWindow
from lockstep.core.types import EngineRequest, Sampling
from lockstep.engine import load
from lockstep.run.runner import Runner

TEXT_TASKS = (
    "exact_word", "count", "sum", "story", "edit", "greeting", "fact", "recall", "persona", "json_object", "json_pair", "json_array",
    "records", "explanation", "program", "tool_call", "parallel_calls", "no_call", "needle",
)  # fmt: skip
PICTURE_TASKS = ("one_shape", "two_shapes", "how_many", "clip")
CONTEXT, LONGEST = 4096, 1200
ROW_TOKENS, ROWS = 256, 8
DRAFTERS = {"mtp": ("mtp", "3"), "dflash": ("drafter", "f7")}


@dataclass(slots=True)
class Serial:
    """One request at a time on a loaded engine. `tokens` and `rounds` count decoding, first tokens left out."""

    runner: Runner
    stops: frozenset[int]
    max_drafts: int = 0
    tokens: int = 0
    rounds: int = 0
    served: int = 0

    def reply(self, ids: list[int], longest: int) -> list[int]:
        """Greedy reply, a stop token included, cut after `longest` tokens."""
        name = f"request-{self.served}"
        self.served += 1
        request = EngineRequest(name, tuple(ids), Sampling(temperature=0.0), longest, self.stops, draft=self.max_drafts > 0)
        pages = tuple(range(-(-(len(ids) + longest + 32) // PAGE_TOKENS)))
        opening = StepPlan(admissions=(Admission(request, 0, pages),), prompts=(PromptSlice(name, 0, len(ids), True),))
        got = list(self.runner.execute(opening).tokens[name])
        while got[-1] not in self.stops and len(got) < longest:
            found = self.runner.execute(StepPlan(windows=(StepWindow(name, self.max_drafts),))).tokens[name]
            got += found
            self.tokens += len(found)
            self.rounds += 1
        self.runner.execute(StepPlan(releases=(name,)))
        return got[:longest]


def _options(checkpoint: Path, **changes: Any) -> ServingOptions:
    return ServingOptions(checkpoint, context=CONTEXT, parallel=1, copy_tokens=0, **changes)


def text_rates(checkpoint: Path, encoder: Encoder, count: int, seed: int) -> tuple[dict[str, float], list[Prompt]]:
    """Share of exact replies per text task, and the prompts whose reply was another."""
    loaded = load(_options(checkpoint), lambda *_: None)
    serial = Serial(loaded.runner, frozenset(loaded.config.text.eos_token_ids))
    waiting = prompts(encoder, TEXT_TASKS, count, CONTEXT // 2, seed)
    for prompt in waiting:
        prompt.got = serial.reply(prompt.ids, min(LONGEST, len(prompt.wanted) + MARGIN))
    return rates(waiting), [prompt for prompt in waiting if not prompt.is_right]


def picture_rates(checkpoint: Path, encoder: Encoder, count: int, seed: int) -> dict[str, float]:
    """Share of exact replies per picture task."""
    config = read_model_config(checkpoint)
    model = Model(config, stored_weights(checkpoint), torch.float32)
    waiting = prompts(encoder, PICTURE_TASKS, count, ROW_TOKENS, seed)
    with torch.no_grad():
        return run(model, waiting, ROWS, ROW_TOKENS, "cpu", frozenset(config.text.eos_token_ids), 40)


def drafting(checkpoint: Path, encoder: Encoder, count: int, seed: int) -> dict[str, Any]:
    """Per drafter: tokens per round of each kind of text, their mean, and what its confidence was worth."""
    result: dict[str, Any] = {}
    for name, (where, policy) in DRAFTERS.items():
        drafter = where if where == "mtp" else str(checkpoint / where)
        loaded = load(_options(checkpoint, drafter=drafter, draft_policy=policy), lambda *_: None)
        confidence = Confidence()
        confidence.watch(loaded.runner._drafter)
        kinds: dict[str, float] = {}
        for kind, tasks in KINDS.items():
            serial = Serial(loaded.runner, frozenset(loaded.config.text.eos_token_ids), loaded.max_drafts)
            for prompt in prompts(encoder, tasks, max(1, count // len(tasks)), CONTEXT // 2, seed):
                serial.reply(prompt.ids, 200)
            kinds[kind] = round(serial.tokens / max(1, serial.rounds), 3)
        mean = round(sum(kinds.values()) / len(kinds), 3)
        result[name] = {"tokens_per_round": kinds, "mean": mean, "confidence": confidence.figures()}
    return result


def _shown(encoder: Encoder, wrong: Iterable[Prompt]) -> list[dict[str, str]]:
    decode = encoder.tokenizer.decode
    return [
        {"task": p.task, "asked": decode(p.ids, skip_special_tokens=False)[-160:], "wanted": decode(p.wanted), "got": decode(p.got)}
        for p in wrong
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="embedded.make.evaluate", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("embedded"))
    parser.add_argument("--count", type=int, default=20, help="prompts of each task and of each kind of text")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, required=True)
    o = parser.parse_args()
    torch.set_num_threads(1)
    encoder, began = Encoder.of(o.checkpoint), time.monotonic()
    text, wrong = text_rates(o.checkpoint, encoder, o.count, o.seed)
    report: dict[str, Any] = {"text": text, "drafting": drafting(o.checkpoint, encoder, o.count, o.seed)}
    report |= {"pictures": picture_rates(o.checkpoint, encoder, o.count, o.seed), "wrong": _shown(encoder, wrong)}
    report["seconds"] = round(time.monotonic() - began, 1)
    o.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(json.dumps({name: value for name, value in report.items() if name != "wrong"}, indent=1) + "\n")


if __name__ == "__main__":
    main()
