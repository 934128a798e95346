"""Feed-forward parts: dense clamped SwiGLU, and routed experts beside a shared one."""

from typing import cast

import torch
from torch import Tensor

from lockstep.config.model import TextConfig
from lockstep.kernels import experts
from lockstep.kernels.cuda import Beside
from lockstep.kernels.exl3 import Exl3Matrix
from lockstep.kernels.experts import GroupedExperts, grouped
from lockstep.kernels.linear import Packed, linear, many, pack
from lockstep.kernels.router import choose, route
from lockstep.kernels.swiglu import swiglu_between
from lockstep.layers.linear import Linear
from lockstep.layers.params import Params
from lockstep.layers.rows import Rows


class DenseMlp:
    """Clamped SwiGLU of width `width` under `params`; this rank's columns of it."""

    def __init__(self, params: Params, config: TextConfig, width: int) -> None:
        self.limit, self.exchange = config.swiglu_limit, params.exchange
        width = params.share.part(width)
        self.gate_up = Linear.load(params, config.hidden_size, {"gate_proj": width, "up_proj": width})
        self.down = Linear.load(params, width, {"down_proj": config.hidden_size})

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        """`[R, D]` to `[R, D]`; row by row, so nothing of `rows` is used."""
        return self.exchange.add(self.partial(x))

    def partial(self, x: Tensor) -> Tensor:
        """What this rank's columns add to the result, `[R, D]`."""
        first, last = self.gate_up.single, self.down.single
        if isinstance(first, Packed) and isinstance(last, Packed):
            return swiglu_between(x, first, last, self.limit)
        return self.down(self.gate_up.swiglu(x, self.limit))


class SparseMlp:
    """Router, routed experts and the shared expert of one layer. All experts of a layer are stored one way.

    Routing is the same on every rank; of the experts a rank has its columns, or some of them whole (see `config.share`).
    """

    def __init__(self, params: Params, config: TextConfig) -> None:
        hidden, count = config.hidden_size, config.n_routed_experts
        self.slots, self.factor, self.limit = config.num_experts_per_tok, config.routed_scaling_factor, config.swiglu_limit
        self.gate = params.float("gate.weight", count, hidden)
        self.router = pack(self.gate)
        self.pieces = many.pieces(self.gate) if self.gate.is_cuda else None
        self.correction = params.float("gate.e_score_correction_bias", count)
        self.shared = DenseMlp(params.under("shared_experts"), config, config.shared_intermediate_size)
        self.exchange, self.held, self.count = params.exchange, params.share.experts(config), count
        self.experts = _load_experts(params.under("experts"), hidden, params.share.expert_width(config), self.held)

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        """`[R, D]` to `[R, D]`; padding rows get the shared expert only."""
        if rows.round is not None:
            return self.exchange.add(self._beside(x, rows.round.plan))
        if choose.runs(x, self.gate):
            chosen, weights = choose.choose(x, self.gate, self.correction, self.slots, self.factor, rows.count, self.pieces)
        else:
            chosen, weights = route(linear(x.float(), self.router), self.correction, self.slots, self.factor)
        out = self.shared.partial(x)
        if rows.count < rows.padded:
            chosen, weights = chosen[: rows.count], weights[: rows.count]
        out[: rows.count] += experts.apply(x, self._held(chosen), weights, self.experts, self.limit).to(x.dtype)
        return self.exchange.add(out)

    def _beside(self, x: Tensor, plan: Tensor) -> Tensor:
        """A step's rows on a CUDA device: the shared expert while the routed ones are found and read."""
        beside = Beside(x.device)
        with beside:
            out = self.shared.partial(x)
        chosen, weights = choose.choose(x, self.gate, self.correction, self.slots, self.factor, plan)
        assert isinstance(self.experts, GroupedExperts)
        grouped.apply(x, self._held(chosen), weights, self.experts, self.limit, onto=(out, beside.join))
        return out

    def _held(self, chosen: Tensor) -> Tensor:
        """Expert ids counted among those held here; -1 for another rank's."""
        if len(self.held) == self.count:
            return chosen
        own = chosen - self.held.start
        return torch.where((own >= 0) & (own < len(self.held)), own, -1)


def _load_experts(params: Params, hidden: int, width: int, held: range) -> experts.Experts:
    shapes = {"gate_proj": (hidden, width), "up_proj": (hidden, width), "down_proj": (width, hidden)}
    found = [[params.matrix(f"{expert}.{name}", *shape) for expert in held] for name, shape in shapes.items()]
    coded = [isinstance(matrix, Exl3Matrix) for kind in found for matrix in kind]
    if all(coded):
        return experts.pack_exl3(*cast(list[list[Exl3Matrix]], found))
    if any(coded):
        raise ValueError(f"{params.prefix}: {sum(coded)} of {len(coded)} expert matrices are EXL3; needed: all of a layer, or none")
    return experts.pack_dense(*cast(list[list[Tensor]], found))
