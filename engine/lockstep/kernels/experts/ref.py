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
    """The (row, slot) pairs of a call, row by row, and how they lie in tiles of 8 with one expert each.

    `rows`, `experts [R k]` of each pair; `tiles[i]` is the expert of tile i; `fill [8 tiles]` the pair in each tile row (unused rows repeat
    pair 0 and are never read), `places [R k]` the tile row of each pair.
    """

    rows: Tensor
    experts: Tensor
    tiles: list[int]
    fill: Tensor
    places: Tensor


def plan(chosen: Tensor) -> Plan:
    """Group the pairs of `chosen [R, k]` by expert."""
    pairs = chosen.flatten()
    members: dict[int, list[int]] = {}
    for pair, expert in enumerate(pairs.tolist()):
        members.setdefault(expert, []).append(pair)
    tiles: list[int] = []
    fill: list[int] = []
    places = [0] * len(pairs)
    for expert, own in members.items():
        for at, pair in enumerate(own):
            places[pair] = len(fill) + at
        used = -(-len(own) // STEP_ROWS)
        tiles += [expert] * used
        fill += own + [0] * (used * STEP_ROWS - len(own))
    rows = [pair // chosen.shape[1] for pair in range(len(pairs))]
    tensors = [torch.tensor(values, device=chosen.device) for values in (rows, fill, places)]
    return Plan(tensors[0], pairs, tiles, tensors[1], tensors[2])


def dense(x: Tensor, plan: Plan, experts: DenseExperts, limit: float) -> Tensor:
    """Expert outputs `[R k, D]` for the pairs' inputs."""
    gate, up = _tiles(x.index_select(0, plan.fill), plan, experts.gate_up).chunk(2, -1)
    # exact: the activation runs on whole tiles, so vector code ends at a row's end whatever the expert width.
    return _tiles(swiglu(gate, up, limit), plan, experts.down).index_select(0, plan.places)


def exl3(x: Tensor, plan: Plan, experts: Exl3Experts, limit: float) -> Tensor:
    """The same with EXL3 weights, fp32. Rotations are row by row, so they run on the pairs; only products need tiles."""
    own = plan.experts
    inputs = rotate_input(x, experts.in_suh.index_select(1, own)).float()
    inner = torch.stack([_products(inputs[0], plan, experts.gate), _products(inputs[1], plan, experts.up)])
    gate, up = rotate_output(inner, experts.in_svh.index_select(1, own)).to(x.dtype)
    hidden = rotate_input(swiglu(gate, up, limit), experts.down_suh.index_select(0, own)).float()
    return rotate_output(_products(hidden, plan, experts.down), experts.down_svh.index_select(0, own))


def _products(x: Tensor, plan: Plan, weights: Sequence[Packed]) -> Tensor:
    """Each pair's row times its expert's weight, `[R k, out]`, tile by tile."""
    return _tiles(x.index_select(0, plan.fill), plan, weights).index_select(0, plan.places)


def _tiles(x: Tensor, plan: Plan, weights: Sequence[Packed]) -> Tensor:
    """Tile rows times their tile's expert, `[8 tiles, out]`."""
    return torch.cat([linear(part, weights[expert]) for part, expert in zip(x.split(STEP_ROWS), plan.tiles, strict=True)])


def combine(outputs: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum in slot order, fp32 `[R, D]`, of pair outputs `[R k, D]` and `weights [R, k]`."""
    products = outputs.float().view(*weights.shape, -1) * weights.unsqueeze(-1)
    total = products[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + products[:, slot]
    return total
