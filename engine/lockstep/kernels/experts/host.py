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
from lockstep.kernels.linear import MAX_STEP_ROWS, STEP_ROWS, Packed, linear, pack
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
    """See `experts.apply`."""
    rows, slots = chosen.shape
    listed: list[int] = chosen.flatten().tolist()
    pairs = [pair for pair, expert in enumerate(listed) if expert >= 0]
    outputs = np.zeros((rows * slots, x.shape[1]), np.float32)
    if pairs:
        own = [listed[pair] for pair in pairs]
        found = _outputs(_to_half(host.array(x)), [pair // slots for pair in pairs], own, experts, scales, limit)
        outputs = found if len(pairs) == rows * slots else _placed(outputs, pairs, found)
    outputs *= host.array(weights).reshape(-1, 1)
    products = outputs.reshape(rows, slots, -1)
    total = products[:, 0]
    for slot in range(1, slots):
        total = total + products[:, slot]
    return host.tensor(total)


def _placed(outputs: Array, pairs: list[int], found: Array) -> Array:
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
    return x.astype(np.float16).astype(np.float32)


def _multiply(x: Array, groups: Groups, weights: Sequence[Packed], out: Array) -> None:
    """Each pair's row times its expert's weight into `out [n, outputs]`. A single row goes twice, to fill the smallest tile."""
    for expert, own in groups.items():
        for first in range(0, len(own), STEP_ROWS):
            part = own[first : first + STEP_ROWS]
            if len(part) == 1:
                part = part * 2
            out[part] = linear(torch.from_numpy(x.take(part, 0)), weights[expert]).numpy()


def _rotated(x: Array) -> Array:
    """Every 128 values of the last axis through the scaled Walsh-Hadamard transform."""
    blocks, rotation = torch.from_numpy(x.reshape(-1, HADAMARD)), _rotation()
    if len(blocks) <= MAX_STEP_ROWS:
        return linear(blocks, rotation).numpy().reshape(x.shape)
    return np.concatenate([linear(part, rotation).numpy() for part in blocks.split(MAX_STEP_ROWS)]).reshape(x.shape)


@cache
def _rotation() -> Packed:
    matrix = torch.ones(1, 1)
    while len(matrix) < HADAMARD:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return pack(matrix * ROTATION_SCALE)
