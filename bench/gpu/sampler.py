"""The sampler on one GPU at the real vocabulary: microseconds a launch by mode and rows, checked against the plain one first.

`PYTHONPATH=engine python bench/gpu/sampler.py OUT.json`. Times are medians of replayed graphs of several launches over rotating logits.
"""

from dataclasses import replace

import numpy as np
import torch
from experts import DEVICE, timed
from result import begun, write
from torch import Tensor

from lockstep.core.types import Sampling
from lockstep.run.draws import Draws
from lockstep.run.sampler import History, RowRequest, choose

VOCABULARY, ROWS, TURNS = 154880, (1, 2, 4, 8, 16, 32), 4
DRAWN = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=5)
MODES = {
    "greedy": replace(DRAWN, temperature=0.0),
    "temperature": DRAWN,
    "top_k 20": replace(DRAWN, top_k=20),
    "top_k 20, top_p 0.95": replace(DRAWN, top_k=20, top_p=0.95),
    "top_p 0.95": replace(DRAWN, top_p=0.95),
    "min_p 0.05": replace(DRAWN, min_p=0.05),
    "all cuts": replace(DRAWN, temperature=0.7, top_k=1000, top_p=0.9, min_p=0.01),
    "penalties": replace(DRAWN, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1, top_p=0.95),
    "biases": replace(DRAWN, logit_bias=tuple((at * 100, 1.5) for at in range(300)), top_p=0.95),
    "mask": replace(DRAWN, top_p=0.95),
    "bans": replace(DRAWN, top_p=0.95),
    "logprobs 20": replace(DRAWN, top_p=0.95),
    "everything": replace(
        DRAWN, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1, top_k=5000, top_p=0.95, min_p=0.001,
        logit_bias=tuple((at * 100, 1.5) for at in range(300)),
    ),
}  # fmt: skip


def asked(mode: str, count: int) -> list[RowRequest]:
    """Rows of one mode."""
    allowed = np.arange(VOCABULARY) % 3 > 0 if mode in ("mask", "everything") else None
    banned = frozenset(range(154820, 154830)) if mode in ("bans", "everything") else frozenset[int]()
    told = 20 if mode in ("logprobs 20", "everything") else -1
    rows = []
    for at in range(count):
        history = History(range(0, VOCABULARY, 11), VOCABULARY) if MODES[mode].has_penalties else None
        rows.append(RowRequest(replace(MODES[mode], seed=at), 1000 + at, banned, history, allowed, (), told))
    return rows


def logits(kind: torch.dtype, spread: float, seed: int) -> Tensor:
    """32 rows as a head could leave them."""
    return (torch.randn(32, VOCABULARY, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE) * spread).to(kind)


def main() -> None:
    """Check, measure, write."""
    asked_for, report = begun(__doc__)
    draws = Draws(VOCABULARY, 32, DEVICE)
    report |= {"us": {}, "vocabulary": VOCABULARY, "wrong": []}
    for mode in MODES:
        for name, kind, spread in (("bf16", torch.bfloat16, 2.5), ("fp32", torch.float32, 2.5), ("bf16, flat", torch.bfloat16, 0.3)):
            turn = [logits(kind, spread, seed) for seed in range(TURNS)]
            rows = asked(mode, 32)
            draws.draw(rows, turn[0])
            found, told = [draws.token(at) for at in range(32)], turn[0].float().cpu().numpy()
            report["wrong"] += [f"{mode}, {name}, row {at}" for at in (0, 31) if found[at] != choose(told[at], rows[at])]
            times = {}
            for count in ROWS if name == "bf16" else (1, 32):
                draws.ask(rows[:count])
                us = timed(lambda count=count, turn=turn: [draws.sampler.launch(one[:count]) for one in turn]) * 1e3 / TURNS
                times[str(count)] = round(us, 2)
            report["us"][f"{mode}; {name}"] = times
            print(mode, name, times, flush=True)
            for row in rows:
                if row.history:
                    draws.forget(row.history)
    report["most_us"] = max(us for times in report["us"].values() for us in times.values())
    write(asked_for.out, report)
    print("wrong:", report["wrong"], "most:", report["most_us"])
    if report["wrong"]:
        raise SystemExit(f"{len(report['wrong'])} rows differ from the plain sampler")


if __name__ == "__main__":
    main()
