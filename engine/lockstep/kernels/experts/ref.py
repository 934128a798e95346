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
    """The n (row, slot) pairs of a call whose expert is held here, row by row, and how they lie in tiles of 8 with one expert each.

    `pairs [n]` their numbers among all R k; `rows`, `experts [n]` of each; `tiles[i]` is the expert of tile i; `fill [8 tiles]` the pair in
    each tile row (unused rows repeat pair 0 and are never read), `places [n]` the tile row of each pair.
    """

    pairs: Tensor
    rows: Tensor
    experts: Tensor
    tiles: list[int]
    fill: Tensor
    places: Tensor


def plan(chosen: Tensor) -> Plan:
    """Group the pairs of `chosen [R, k]` by expert, leaving out -1."""
    listed = chosen.flatten().tolist()
    pairs = [pair for pair, expert in enumerate(listed) if expert >= 0]
    members: dict[int, list[int]] = {}
    for at, pair in enumerate(pairs):
        members.setdefault(listed[pair], []).append(at)
    tiles: list[int] = []
    fill: list[int] = []
    places = [0] * len(pairs)
    for expert, own in members.items():
        for at, pair in enumerate(own):
            places[pair] = len(fill) + at
        used = -(-len(own) // STEP_ROWS)
        tiles += [expert] * used
        fill += own + [0] * (used * STEP_ROWS - len(own))
    rows, experts = [pair // chosen.shape[1] for pair in pairs], [listed[pair] for pair in pairs]
    numbers = [torch.tensor(values, device=chosen.device) for values in (pairs, rows, experts, fill, places)]
    return Plan(numbers[0], numbers[1], numbers[2], tiles, numbers[3], numbers[4])


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


def spread(outputs: Tensor, plan: Plan, pairs: int) -> Tensor:
    """`outputs [n, D]` of the held pairs among zeros for the others, `[pairs, D]`."""
    if len(plan.pairs) == pairs:
        return outputs
    return outputs.new_zeros(pairs, outputs.shape[1]).index_copy_(0, plan.pairs, outputs)


def combine(outputs: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum in slot order, fp32 `[R, D]`, of pair outputs `[R k, D]` and `weights [R, k]`."""
    products = outputs.float().view(*weights.shape, -1) * weights.unsqueeze(-1)
    total = products[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + products[:, slot]
    return total
