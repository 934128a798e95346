"""Norms of rows on a CUDA device, one launch each."""

from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda

SOURCE = Path(__file__).with_name("fused.cu")
WIDE = 1024


def runs(x: Tensor, weight: Tensor, kind: torch.dtype) -> bool:
    """True if rows of `x`, of type `kind` like `weight`, are normed here."""
    width = x.shape[-1]
    return x.is_cuda and x.dtype is kind and weight.dtype is kind and width % (256 if width >= WIDE else 32) == 0 and width <= 16 * WIDE


def macros(width: int, gated: bool) -> dict[str, int]:
    """What the source is compiled with."""
    return {"WIDTH": width, "THREADS": 256 if width >= WIDE else 32, "GATED": int(gated)}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `rms_norm.rms_norm`."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(x, False, (x.contiguous(), weight, out), eps)
    return out


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    """See `rms_norm.gated_rms_norm`."""
    out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    _launch(x, True, (x.contiguous(), weight, gate.contiguous(), out), eps)
    return out


def _launch(x: Tensor, gated: bool, given: tuple[Tensor, ...], eps: float) -> None:
    found = macros(x.shape[-1], gated)
    rows, block = x.numel() // x.shape[-1], max(128, found["THREADS"])
    kernel = cuda.load(SOURCE, found, x.device, {"row_norm": 0})["row_norm"]
    kernel(-(-rows * found["THREADS"] // block), block, (*given, rows, eps), True)
