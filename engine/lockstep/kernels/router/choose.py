"""Routing on a CUDA device, logits included, in one launch."""

from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda

SOURCE = Path(__file__).with_name("choose.cu")


def runs(x: Tensor, router: Tensor) -> bool:
    """True if rows `x [R, D]` are routed here by `router [E, D]`."""
    return x.is_cuda and x.dtype is torch.bfloat16 and router.shape[0] % 2 == 0 and router.shape[1] % 256 == 0


def macros(inputs: int, experts: int, slots: int) -> dict[str, int]:
    """What the source is compiled with."""
    return {"INPUTS": inputs, "EXPERTS": experts, "SLOTS": slots}


def choose(
    x: Tensor, router: Tensor, correction: Tensor, slots: int, factor: float, ticket: Tensor, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    """As `router.route` for `x router^T`, with rows behind `count` (a number, or int32 on the device) choosing nobody: -1 and 0.

    `router [E, D]` fp32; `ticket` int32 `[1]`, 0, one for each layer.
    """
    rows, (experts, inputs) = len(x), router.shape
    logits, weights = (torch.empty(rows, size, dtype=torch.float32, device=x.device) for size in (experts, slots))
    chosen = torch.empty(rows, slots, dtype=torch.int64, device=x.device)
    counted, known = (count, 1) if isinstance(count, Tensor) else (ticket, 0)
    kernel = cuda.load(SOURCE, macros(inputs, experts, slots), x.device, {"choose": 0})["choose"]
    held = rows if isinstance(count, Tensor) else count
    kernel(experts // 2, 256, (x, router, correction, logits, chosen, weights, ticket, counted, rows, held, known, float(factor)), True)
    return chosen, weights
