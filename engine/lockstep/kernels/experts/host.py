"""EXL3 experts for a few fp32 rows through NumPy. A rotation is a product of 128 values with the Hadamard matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels import host
from lockstep.kernels.exl3 import HADAMARD
from lockstep.kernels.exl3.ref import ROTATION_SCALE
from lockstep.kernels.host import Array
from lockstep.kernels.linear import MAX_STEP_ROWS, STEP_ROWS, Packed, pack
from lockstep.kernels.linear.host import linear
from lockstep.kernels.swiglu.host import swiglu_rows

if TYPE_CHECKING:
    from lockstep.kernels.experts import Exl3Experts

Groups = dict[int, list[int]]


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of all experts as fp32: `suh [2, E, D]`, `svh [2, E, F]` of gate and up, `down_suh [E, F]`, `down_svh [E, D]`."""

    suh: Array
    svh: Array
    down_suh: Array
    down_svh: Array


def exl3(x: Tensor, chosen: Tensor, weights: Tensor, experts: Exl3Experts, scales: Scales, limit: float) -> Tensor:
    rows, slots = chosen.shape
    listed: list[int] = host.array(chosen).ravel().tolist()
    pairs = [pair for pair, expert in enumerate(listed) if expert >= 0]
    own = [listed[pair] for pair in pairs]
    outputs = _outputs(_to_half(host.array(x)), [pair // slots for pair in pairs], own, experts, scales, limit) if own else None
    if len(own) < len(listed):
        outputs = _placed(rows * slots, x.shape[1], pairs, outputs)
    outputs *= host.array(weights).reshape(-1, 1)
    products = outputs.reshape(rows, slots, -1)
    total = products[:, 0]
    for slot in range(1, slots):
        total = total + products[:, slot]
    return host.tensor(total)


def _placed(count: int, width: int, pairs: list[int], found: Array | None) -> Array:
    """`found` at `pairs` of `count` rows, zeros elsewhere."""
    outputs = np.zeros((count, width), np.float32)
    if found is not None:
        outputs[pairs] = found
    return outputs


def _outputs(x: Array, rows: list[int], own: list[int], experts: Exl3Experts, scales: Scales, limit: float) -> Array:
    """`[n, D]` of n pairs of a row of `x` (fp16 values) and an expert."""
    groups: Groups = {}
    for pair, expert in enumerate(own):
        groups.setdefault(expert, []).append(pair)
    inputs = _to_half(_rotated(_to_half(x.take(rows, 0) * scales.suh.take(own, 1))))
    inner = np.empty((2, len(own), scales.svh.shape[2]), np.float32)
    _multiply(inputs[0], groups, experts.gate, inner[0])
    _multiply(inputs[1], groups, experts.up, inner[1])
    gate, up = _rotated(inner) * scales.svh.take(own, 1)
    hidden = _to_half(swiglu_rows(gate, up, limit))
    hidden = _to_half(_rotated(_to_half(hidden * scales.down_suh.take(own, 0))))
    outer = np.empty((len(own), x.shape[1]), np.float32)
    _multiply(hidden, groups, experts.down, outer)
    return _rotated(outer) * scales.down_svh.take(own, 0)


def _to_half(x: Array) -> Array:
    # exact: the product of two fp16 values fits fp32, so rounding it here is the format's fp16 product.
    # NumPy converts halves one by one, torch in vectors; each value is rounded to the nearest, ties to even, either way.
    return torch.from_numpy(x).half().float().numpy()


def _multiply(x: Array, groups: Groups, weights: Sequence[Packed], out: Array) -> None:
    """Each pair's row times its expert's weight into `out [n, outputs]`."""
    for expert, own in groups.items():
        if len(own) == 1:
            pair = own[0]
            out[pair] = linear(x[pair : pair + 1], weights[expert])[0]
            continue
        for first in range(0, len(own), STEP_ROWS):
            part = own[first : first + STEP_ROWS]
            out[part] = linear(x.take(part, 0), weights[expert])


def _rotated(x: Array) -> Array:
    """Every 128 values of the last axis through the scaled Walsh-Hadamard transform."""
    blocks, rotation = x.reshape(-1, HADAMARD), _rotation()
    if len(blocks) <= MAX_STEP_ROWS:
        return linear(blocks, rotation).reshape(x.shape)
    parts = [linear(blocks[first : first + MAX_STEP_ROWS], rotation) for first in range(0, len(blocks), MAX_STEP_ROWS)]
    return np.concatenate(parts).reshape(x.shape)


@cache
def _rotation() -> Packed:
    matrix = torch.ones(1, 1)
    while len(matrix) < HADAMARD:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return pack(matrix * ROTATION_SCALE)
