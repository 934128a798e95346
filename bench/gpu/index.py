"""Scores and choice of pools on one GPU, 8K to 1M tokens of context, 1 to 8 rows of a sequence: checked, then timed against the bytes read.

`PYTHONPATH=engine python bench/gpu/index.py OUT.json`, shapes of one layer. Checked: scores against float64, every choice against a full
stable sort of the scores, rows alone against rows together. `byte_us` is the keys' bytes at 4.3 TB/s, what a large copy reaches.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from experts import DEVICE, timed
from result import begun, write
from torch import Tensor

from lockstep.kernels import fp8
from lockstep.kernels import round as plans
from lockstep.kernels.indexer import paged
from lockstep.kernels.round import Round

HEADS, WIDTH, LIMIT, QUERIES, OFFSET, PITCH, WEIGHTS = 32, 128, 512, 12288, 8192, 2336, 2176
CONTEXTS = (8192, 32768, 131072, 524288, 1048576)
ROWS = (1, 4, 8)
BYTES_PER_US = 4.3e6
SCALE = (HEADS * WIDTH) ** -0.5


def round_of(rows: int, context: int) -> tuple[Round, Tensor]:
    """A window of `rows` rows at the end of a sequence of `context` tokens, whose pages lie in no order; and where its pools lie."""
    pages = torch.randperm(context // 64, generator=torch.Generator().manual_seed(context)).int()
    plan = torch.zeros(plans.plan_size(rows, 1), dtype=torch.int32)
    plan[:3] = torch.tensor([rows, 1, rows])
    fields = plan[plans.HEAD : plans.HEAD + plans.FIELDS * rows].view(plans.FIELDS, rows)
    fields[1], fields[3] = torch.arange(context - rows, context), torch.arange(rows)
    plan[plans.HEAD + plans.FIELDS * rows :][: rows + 1] = torch.arange(rows + 1)
    scores = torch.empty(rows, context // 4, device=DEVICE)
    none = torch.empty(0, device=DEVICE)
    at = Round(rows, 1, plan.to(DEVICE), pages.unsqueeze(0).to(DEVICE), none, none, none, none, none, scores)
    return at, (pages.long().unsqueeze(1) * 16 + torch.arange(16)).flatten().to(DEVICE)


def inputs_of(rows: int, context: int, coded: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, projections, keys as stored and as numbers. Keys are few values repeated, so that scores tie."""
    draw = torch.Generator(DEVICE).manual_seed(rows)
    queries = torch.randn(rows, QUERIES, generator=draw, device=DEVICE).bfloat16()
    projected = torch.randn(rows, PITCH, generator=draw, device=DEVICE).bfloat16()
    keys = torch.randn(context // 4, WIDTH, generator=draw, device=DEVICE).bfloat16()
    keys[context // 16 :: 7] = keys[0]
    if not coded:
        return queries, projected, keys, keys
    store = fp8.row_store((context // 4,), WIDTH, DEVICE)
    everywhere = torch.arange(context // 4, device=DEVICE)
    fp8.write(store, everywhere, keys)
    return queries, projected, store, fp8.read(store, everywhere, torch.bfloat16)


def check(at: Round, places: Tensor, found: dict[str, int], given: tuple[Tensor, ...], keys: Tensor) -> float:
    """Returns the scores' relative distance to float64; stops the program if a choice is not that of a stable sort."""
    queries, projected, store = given
    chosen = paged.choose(queries, projected, store, at, SCALE, found)
    assert at.scores is not None
    most = 0.0
    for row in range(at.rows):
        pools = (int(at.plan[plans.HEAD + at.rows + row]) + 1) // 4
        scores = at.scores[row, :pools]
        near = queries[row, OFFSET:].view(HEADS, WIDTH).double() @ keys[places[:pools]].double().T
        wanted = (near.relu() * projected[row, WEIGHTS : WEIGHTS + HEADS].double().unsqueeze(1) * SCALE).sum(0)
        most = max(most, float((scores - wanted).norm() / wanted.norm()))
        best = torch.sort(scores, descending=True, stable=True).indices[:LIMIT].sort().values
        if not torch.equal(chosen[row].long(), best):
            raise SystemExit(
                f"row {row} of {at.rows} over {pools} pools: {int((chosen[row] != best).sum())} of its choices differ from a sort's"
            )
    return most


def measure(rows: int, context: int, coded: bool) -> dict[str, Any]:
    """Check and time one case."""
    at, places = round_of(rows, context)
    queries, projected, store, keys = inputs_of(rows, context, coded)
    found = paged.macros(HEADS, WIDTH, LIMIT, QUERIES, OFFSET, PITCH, WEIGHTS, coded)
    distance = check(at, places, found, (queries, projected, store), keys)
    # Enough stores behind one another that none is read from the L2 cache twice.
    turn = [store.clone() for _ in range(max(2, min(32, (1 << 28) // (store.numel() * store.element_size()))))]
    us = timed(lambda: [paged.choose(queries, projected, one, at, SCALE, found) for one in turn]) / len(turn) * 1e3
    byte_us = store.numel() * store.element_size() / BYTES_PER_US
    return {"us": round(us, 2), "byte_us": round(byte_us, 2), "times": round(us / byte_us, 2), "from_float64": distance}


def main() -> None:
    """Check, time, write."""
    asked, report = begun(__doc__)
    with torch.inference_mode():
        for kv in ("bf16", "fp8"):
            report[kv] = {str(context): {str(rows): measure(rows, context, kv == "fp8") for rows in ROWS} for context in CONTEXTS}
            print(kv, json.dumps({c: {r: (v["us"], v["times"]) for r, v in row.items()} for c, row in report[kv].items()}), flush=True)
    write(asked.out, report)


if __name__ == "__main__":
    main()
