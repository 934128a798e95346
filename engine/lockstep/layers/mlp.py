"""Feed-forward parts: dense clamped SwiGLU, and routed experts beside a shared one."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from lockstep.config.model import TextConfig
from lockstep.kernels import experts
from lockstep.kernels.exl3 import Exl3Matrix
from lockstep.kernels.linear import linear, pack
from lockstep.kernels.router import route
from lockstep.kernels.swiglu import swiglu
from lockstep.layers.linear import Linear
from lockstep.layers.params import Params
from lockstep.layers.rows import Rows


class DenseMlp:
    """Clamped SwiGLU of width `width` under `params`."""

    def __init__(self, params: Params, config: TextConfig, width: int) -> None:
        self.limit = config.swiglu_limit
        self.gate_up = Linear.load(params, config.hidden_size, {"gate_proj": width, "up_proj": width})
        self.down = Linear.load(params, width, {"down_proj": config.hidden_size})

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        """`[R, D]` to `[R, D]`; row by row, so nothing of `rows` is used."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(swiglu(gate, up, self.limit))


class SparseMlp:
    """Router, routed experts and the shared expert of one layer. All experts of a layer are stored one way."""

    def __init__(self, params: Params, config: TextConfig) -> None:
        hidden, width, count = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
        self.slots, self.factor, self.limit = config.num_experts_per_tok, config.routed_scaling_factor, config.swiglu_limit
        self.router = pack(params.float("gate.weight", count, hidden))
        self.correction = params.float("gate.e_score_correction_bias", count)
        self.shared = DenseMlp(params.under("shared_experts"), config, config.shared_intermediate_size)
        self.experts = _load_experts(params.under("experts"), hidden, width, count)

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        """`[R, D]` to `[R, D]`; padding rows get the shared expert only."""
        chosen, weights = route(linear(x.float(), self.router), self.correction, self.slots, self.factor)
        out = self.shared(x, rows)
        out[: rows.count] += experts.apply(x, chosen[: rows.count], weights[: rows.count], self.experts, self.limit).to(x.dtype)
        return out


def _load_experts(params: Params, hidden: int, width: int, count: int) -> experts.DenseExperts | experts.Exl3Experts:
    shapes = {"gate_proj": (hidden, width), "up_proj": (hidden, width), "down_proj": (width, hidden)}
    found = [[params.matrix(f"{expert}.{name}", *shape) for expert in range(count)] for name, shape in shapes.items()]
    coded = [isinstance(matrix, Exl3Matrix) for kind in found for matrix in kind]
    if all(coded):
        return experts.pack_exl3(*cast(list[list[Exl3Matrix]], found))
    if any(coded):
        raise ValueError(f"{params.prefix}: {sum(coded)} of {len(coded)} expert matrices are EXL3; needed: all of a layer, or none")
    return experts.pack_dense(*cast(list[list[Tensor]], found))
