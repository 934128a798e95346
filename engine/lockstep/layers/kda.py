"""Kimi delta attention layer: projections, convolution, gates, gated norm. Stepwise or in chunks is the memory's choice, not known here."""

from functools import partial

import torch
from torch import Tensor

from lockstep.config.model import TextConfig
from lockstep.kernels import kda
from lockstep.kernels.kda import chain, chunk
from lockstep.kernels.linear import pack
from lockstep.kernels.rms_norm import gated_rms_norm
from lockstep.kernels.round import Slice
from lockstep.layers.linear import Linear
from lockstep.layers.params import Params
from lockstep.layers.rows import RowMemory, Rows


class KdaAttention:
    """Layer number `layer` among the KDA layers; this rank's heads of it."""

    def __init__(self, params: Params, config: TextConfig, layer: int) -> None:
        hidden, heads, width = config.hidden_size, params.share.part(config.linear_num_heads), config.linear_head_dim
        channels = heads * width
        self.layer = layer
        inputs = {f"{name}_proj": channels for name in "qkv"} | {"f_a_proj": width, "g_a_proj": width, "b_proj": heads}
        self.project = Linear.load(params, hidden, inputs)
        low = torch.stack([params.dense(f"{name}_b_proj", width, channels) for name in "fg"])
        taps = [params.float(f"{name}_conv1d.weight", channels, 1, config.linear_conv_kernel) for name in "qkv"]
        self.mixer = kda.Mixer(
            taps=torch.cat(taps)[:, 0].T.contiguous(),
            decay_and_gate=pack(low),
            rate=params.float("A_log", heads).exp().view(heads, 1),
            offset=params.float("dt_bias", channels).view(heads, width),
            bound=config.linear_gate_lower_bound,
            low=chain.pack_low(low) if low.is_cuda else low,
        )
        self.norm_weight = params.float("o_norm.weight", width)
        self.norm_eps = config.rms_norm_eps
        self.out = Linear.load(params, channels, {"o_proj": hidden})
        self.exchange = params.exchange

    def __call__(self, x: Tensor, rows: Rows, memory: RowMemory | None) -> Tensor:
        """`x [R, D]` to `[R, D]`."""
        if rows.round is not None:
            self.project.into(rows.round.projected[self.layer], x)
            return self.exchange.add(self.out(chain.window(rows.round, self.layer, self.mixer, self.norm_weight, self.norm_eps)))
        if rows.slice is not None:
            return self.exchange.add(self.out(self._tiles(self.project(x), rows.slice)))
        assert memory is not None
        inputs, gate = kda.prepare(self.project(x), partial(memory.conv_source, self.layer), rows.conv_index, self.mixer)
        o = gated_rms_norm(memory.delta_rule(self.layer, inputs), self.norm_weight, gate, self.norm_eps)
        return self.exchange.add(self.out(o.flatten(1)))

    def _tiles(self, projected: Tensor, at: Slice) -> Tensor:
        tail = at.at.conv_tail[self.layer, at.slot]
        o, gate = chunk.tiles(projected, at.count, tail, at.at.kda[self.layer, at.copy], self.mixer)
        newest = torch.cat([tail, projected[max(0, at.count - len(tail)) : at.count, : tail.shape[1]]])
        tail.copy_(newest[-len(tail) :])
        return gated_rms_norm(o, self.norm_weight, gate, self.norm_eps).flatten(1)
