"""Routed experts: every (row, slot) product on its own, combined in slot order. Knows no router and no storage format beyond its two.

Dense experts multiply plain weights. EXL3 experts follow the format's five steps: input rotation rounded to fp16, product with the
inner weight in fp32, output rotation in fp32. On a CUDA device they stay coded where `grouped` knows their form."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.exl3 import Exl3Matrix
from lockstep.kernels.experts import grouped, host, ref
from lockstep.kernels.experts.grouped import GroupedExperts
from lockstep.kernels.linear import Packed, pack


@dataclass(frozen=True, slots=True)
class DenseExperts:
    """Per expert: `gate_up` maps D to 2 F (gate first), `down` maps F to D."""

    gate_up: tuple[Packed, ...]
    down: tuple[Packed, ...]


@dataclass(frozen=True, slots=True)
class Exl3Experts:
    """Per expert the inner weights `gate`, `up` (D to F) and `down` (F to D) in fp32, and the scales of all experts in fp16.

    `in_suh [2, E, D]` and `in_svh [2, E, F]` of gate and up, `down_suh [E, F]`, `down_svh [E, D]`. `scales` are the same for NumPy, on the
    CPU only."""

    gate: tuple[Packed, ...]
    up: tuple[Packed, ...]
    down: tuple[Packed, ...]
    in_suh: Tensor
    in_svh: Tensor
    down_suh: Tensor
    down_svh: Tensor
    scales: host.Scales | None


Experts = DenseExperts | Exl3Experts | GroupedExperts


def pack_dense(gate: Sequence[Tensor], up: Sequence[Tensor], down: Sequence[Tensor]) -> DenseExperts:
    """From stored weights `[F, D]`, `[F, D]`, `[D, F]` of every expert, in expert order."""
    gate_up = tuple(pack(torch.cat(pair)) for pair in zip(gate, up, strict=True))
    return DenseExperts(gate_up, tuple(pack(weight) for weight in down))


def pack_exl3(gate: Sequence[Exl3Matrix], up: Sequence[Exl3Matrix], down: Sequence[Exl3Matrix]) -> Exl3Experts | GroupedExperts:
    """Decode the inner weights of every expert, or keep them coded for `grouped`. Raises ValueError if a matrix has a bias."""
    if any(matrix.bias is not None for matrix in (*gate, *up, *down)):
        raise ValueError("an expert matrix carries a bias; needed: none")
    if grouped.fits((*gate, *up), down):
        return grouped.pack(gate, up, down)
    inner = lambda kind: tuple(pack(matrix.inner().float().T) for matrix in kind)  # noqa: E731
    in_suh = torch.stack([torch.stack([matrix.suh for matrix in kind]) for kind in (gate, up)])
    in_svh = torch.stack([torch.stack([matrix.svh for matrix in kind]) for kind in (gate, up)])
    down_suh, down_svh = torch.stack([matrix.suh for matrix in down]), torch.stack([matrix.svh for matrix in down])
    scales = [values.float().numpy() for values in (in_suh, in_svh, down_suh, down_svh)] if in_suh.is_cpu else []
    return Exl3Experts(
        gate=inner(gate),
        up=inner(up),
        down=inner(down),
        in_suh=in_suh,
        in_svh=in_svh,
        down_suh=down_suh,
        down_svh=down_svh,
        scales=host.Scales(*scales) if scales else None,
    )


def apply(x: Tensor, chosen: Tensor, weights: Tensor, experts: Experts, limit: float) -> Tensor:
    """Weighted sum of the chosen experts' clamped SwiGLUs for the first R rows of `x [>= R, D]`, fp32 `[R, D]`.

    `chosen [R, k]` int64, `weights [R, k]` fp32; -1 is an expert held elsewhere, which adds nothing here. Which other rows chose the same
    expert does not change a bit."""
    if isinstance(experts, GroupedExperts):
        return grouped.apply(x, chosen, weights, experts, limit)
    if isinstance(experts, Exl3Experts) and experts.scales is not None and host_rows.runs(x):
        return host.exl3(x, chosen, weights, experts, experts.scales, limit)
    plan = ref.plan(chosen)
    if not plan.tiles:
        return x.new_zeros(chosen.shape[0], x.shape[1], dtype=torch.float32)
    pairs = x.index_select(0, plan.rows)
    outputs = ref.dense(pairs, plan, experts, limit) if isinstance(experts, DenseExperts) else ref.exl3(pairs, plan, experts, limit)
    return ref.combine(ref.spread(outputs, plan, chosen.numel()), weights)
