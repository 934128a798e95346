"""Plain PyTorch experts: rows grouped by expert into tiles of 8, each tile multiplied by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels.exl3 import rotate_input, rotate_output
from lockstep.kernels.linear import STEP_ROWS, Packed, linear
from lockstep.kernels.swiglu import swiglu

if TYPE_CHECKING:
    from lockstep.kernels.experts import DenseExperts, Exl3Experts


@dataclass(frozen=True, slots=True)
class Plan:
    """Tiles of 8 product rows with one expert each.

    `tiles[i]` is the expert of tile i; `experts [8 tiles]` the same per product row; `rows` the input row of each product row;
    `places [R k]` the product row of each (row, slot). A tile's unused rows repeat an input row and are never read.
    """

    tiles: list[int]
    experts: Tensor
    rows: Tensor
    places: Tensor


def plan(chosen: Tensor) -> Plan:
    """Group the (row, slot) pairs of `chosen [R, k]` by expert."""
    slots = chosen.shape[1]
    members: dict[int, list[int]] = {}
    for pair, expert in enumerate(chosen.flatten().tolist()):
        members.setdefault(expert, []).append(pair)
    tiles: list[int] = []
    rows: list[int] = []
    places = [0] * chosen.numel()
    for expert, pairs in sorted(members.items()):
        for at, pair in enumerate(pairs):
            places[pair] = len(rows) + at
        used = -(-len(pairs) // STEP_ROWS)
        tiles += [expert] * used
        rows += [pair // slots for pair in pairs] + [0] * (used * STEP_ROWS - len(pairs))
    of_rows = [expert for expert in tiles for _ in range(STEP_ROWS)]
    index = torch.tensor([of_rows, rows], device=chosen.device)
    return Plan(tiles, index[0], index[1], torch.tensor(places, device=chosen.device))


def dense(x: Tensor, plan: Plan, experts: DenseExperts, limit: float) -> Tensor:
    """Expert outputs `[8 tiles, D]` for gathered inputs."""
    return _tiles(swiglu(_tiles(x, plan, experts.gate_up), limit), plan, experts.down)


def exl3(x: Tensor, plan: Plan, experts: Exl3Experts, limit: float) -> Tensor:
    """The same with EXL3 weights, fp32."""
    scales = lambda values: values.index_select(0, plan.experts)  # noqa: E731
    gate = _tiles(rotate_input(x, scales(experts.gate_suh)).float(), plan, experts.gate)
    up = _tiles(rotate_input(x, scales(experts.up_suh)).float(), plan, experts.up)
    both = torch.cat([rotate_output(gate, scales(experts.gate_svh)), rotate_output(up, scales(experts.up_svh))], -1)
    inner = rotate_input(swiglu(both.to(x.dtype), limit), scales(experts.down_suh)).float()
    return rotate_output(_tiles(inner, plan, experts.down), scales(experts.down_svh))


def _tiles(x: Tensor, plan: Plan, weights: Sequence[Packed]) -> Tensor:
    parts = x.split(STEP_ROWS)
    return torch.cat([linear(part, weights[expert]) for part, expert in zip(parts, plan.tiles, strict=True)])


def combine(outputs: Tensor, plan: Plan, weights: Tensor) -> Tensor:
    """Weighted sum in slot order, fp32 `[R, D]`."""
    products = outputs.index_select(0, plan.places).float().view(*weights.shape, -1) * weights.unsqueeze(-1)
    total = products[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + products[:, slot]
    return total
