"""The delta rule over windows of rows on a CUDA device: one launch for all sequences and rows of a layer."""

from collections.abc import Sequence as Rows
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.kda.ref import RowInputs

SOURCE = Path(__file__).with_name("step.cu")
LANES, CHANNELS_A_LANE = 32, 64


def runs(state: Tensor) -> bool:
    """True if windows over `state [N, H, d, d]` run here."""
    return state.is_cuda and state.dtype is torch.float32 and _divides(state.shape[-1]) and state.is_contiguous()


def _divides(width: int) -> bool:
    """Whole warps, and a power of two of lanes a value channel."""
    return width in (32, 64, 128, 256)


def step_window(state: Tensor, base: Tensor, scratch: Tensor, rows: RowInputs, active: Rows[int], out: Tensor) -> None:
    """See `kda.step_window`."""
    heads, width = state.shape[1], state.shape[2]
    count = sum(active)
    kernel = cuda.load(SOURCE, {"WIDTH": width}, state.device, {"step_window": 0})["step_window"]
    given = [part[:count].contiguous() for part in rows]
    found = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    offsets = _offsets(tuple(active), state.device)
    warps = max(1, width // CHANNELS_A_LANE) * width // LANES
    kernel(len(base) * heads * warps, LANES, (state, base, scratch, *given, offsets, found, heads, len(active)))
    if found is not out:
        out[:count] = found[:count]


@lru_cache(maxsize=256)
def _offsets(active: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor([0, *accumulate(active)], dtype=torch.int32, device=device)
