"""Routing on a CUDA device, logits included, in two launches."""

from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.linear import many

SOURCE = Path(__file__).with_name("choose.cu")


def runs(x: Tensor, router: Tensor) -> bool:
    """True if rows `x [R, D]` are routed here by `router [E, D]`."""
    return x.is_cuda and x.dtype is torch.bfloat16 and router.shape[0] % 2 == 0 and router.shape[1] % 256 == 0


def macros(inputs: int, experts: int, slots: int) -> dict[str, int]:
    """What the source is compiled with."""
    return {"INPUTS": inputs, "EXPERTS": experts, "SLOTS": slots}


def choose(
    x: Tensor, router: Tensor, correction: Tensor, slots: int, factor: float, count: int | Tensor, pieces: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `router.route` for `x router^T`, `router [E, D]` fp32. Rows behind `count` (a number, or int32 on the device) get -1 and 0.

    `pieces` are those of `many.pieces` of the router, for rows of prompt tiles."""
    rows, (experts, inputs) = len(x), router.shape
    logits, weights = (torch.empty(rows, size, dtype=torch.float32, device=x.device) for size in (experts, slots))
    chosen = torch.empty(rows, slots, dtype=torch.int64, device=x.device)
    counted = (count, rows, 1) if isinstance(count, Tensor) else (chosen, count, 0)
    kernels = cuda.load(SOURCE, macros(inputs, experts, slots), x.device, {"logits": 0, "choose": 0})
    if pieces is None or rows < many.TILE:
        kernels["logits"](experts // 2, 256, (x, router, logits, *counted), True)
    else:
        logits = many.exact(x, pieces, experts)
    kernels["choose"](rows, 32, (logits, correction, chosen, weights, *counted, float(factor)), True)
    return chosen, weights
