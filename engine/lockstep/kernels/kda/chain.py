"""Kimi delta attention of a step's windows on a CUDA device: one launch a layer for all sequences and rows, one for all layers' commit."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.round import Round

if TYPE_CHECKING:
    from lockstep.kernels.kda import Mixer

SOURCE = Path(__file__).with_name("chain.cu")
WIDTHS, TAPS = (32, 64, 128), 4


def pack_low(decay_and_gate: Tensor) -> Tensor:
    """`[2, H d, d]` (outputs, inputs) as `[H, d / 8, 2, d, 8]`, the order in which the kernel's threads read."""
    width = decay_and_gate.shape[2]
    return decay_and_gate.unflatten(1, (-1, width)).unflatten(3, (-1, 8)).permute(1, 3, 0, 2, 4).contiguous()


def window(at: Round, layer: int, mixer: "Mixer", norm_weight: Tensor, eps: float) -> Tensor:
    """Normed outputs bf16 `[rows, H d]` of KDA layer `layer` for what lies in `at.projected`; padding rows are not written.

    The state behind each window is stored beside the committed one."""
    out = at.projected.new_empty(at.rows, at.conv_tail.shape[3] // 3)
    weights = (mixer.low, mixer.taps, mixer.rate, mixer.offset, norm_weight)
    given = (at.kda[layer], at.conv_tail[layer], at.projected[layer], at.plan, *weights, out, at.rows, at.most, mixer.bound, eps)
    heads, width = mixer.offset.shape
    _kernels(at)["window"](at.most * heads, 2 * width, given, True)
    return out


def table_of(mixers: Sequence["Mixer"], device: torch.device) -> Tensor:
    """Where each layer's weights lie, for `commit`."""
    parts = [[part.data_ptr() for part in (mixer.low, mixer.taps, mixer.rate, mixer.offset)] for mixer in mixers]
    return torch.tensor(parts, dtype=torch.int64, device=device)


def commit(at: Round, table: Tensor, bound: float) -> None:
    """Make the rows that `at.plan` keeps committed in every layer: states where windows are cut, rows of the convolution."""
    layers, copies, heads, width = at.kda.shape[:4]
    given = (at.kda, at.conv_tail, at.projected, at.plan, table, at.rows, at.most, copies, at.conv_tail.shape[1], bound)
    _kernels(at)["commit"](layers * at.most * heads, 2 * width, given)


def macros(heads: int, width: int, pitch: int) -> dict[str, int]:
    """What the source is compiled with."""
    return {"HEADS": heads, "WIDTH": width, "PITCH": pitch}


def _kernels(at: Round) -> dict[str, cuda.Kernel]:
    found = macros(at.kda.shape[2], at.kda.shape[3], at.projected.shape[2])
    return cuda.load(SOURCE, found, at.kda.device, {"window": 0, "commit": 0})
