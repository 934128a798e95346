"""The vision tower: pixels of one picture, or of one pair of frames, into rows that stand in for embeddings. Knows no prompt.

# exact: one attention segment a call, so a picture's rows depend on its pixels and on nothing beside it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.config.model import VisionConfig
from lockstep.config.processor import Normalisation
from lockstep.kernels.rms_norm import layer_norm
from lockstep.kernels.swiglu import swiglu
from lockstep.layers.norm import RmsNorm
from lockstep.layers.params import Params

_MERGER_EPS = 1e-5


class VisionTower:
    """The tower of `params`, the scope of `model.visual`. Weights keep the activation type; products are plain library calls."""

    def __init__(self, params: Params, config: VisionConfig, pixels: Normalisation) -> None:
        self.config, self.dtype, self.device = config, params.dtype, params.device
        hidden, merge, side = config.hidden_size, config.spatial_merge_size, config.patch_size
        shape = (hidden, config.in_channels, config.temporal_patch_size, side, side)
        self._mean, self._scale = (torch.tensor(values, device=params.device)[:, None, None] for values in (pixels.mean, pixels.deviation))
        self._embed = params.tensor("patch_embed.proj.weight", *shape).flatten(1), params.tensor("patch_embed.proj.bias", hidden)
        self._blocks = [_Block(params.under(f"blocks.{block}"), config) for block in range(config.depth)]
        self._norm = RmsNorm(params, "post_layernorm", hidden, config.rms_norm_eps)
        # Columns in the order of four neighbouring patches: row, column, channel.
        down = params.tensor("downsample.weight", config.out_hidden_size, hidden, merge, merge).permute(0, 2, 3, 1).flatten(1)
        self._downsample = down, params.tensor("downsample.bias", config.out_hidden_size)
        self._merger = _Merger(params.under("merger"), config)

    @torch.inference_mode()
    def rows(self, frames: Tensor) -> Tensor:
        """`frames uint8 [1 or 2, height, width, 3]`, sides whole blocks of patches; rows `[tokens, D]` in the activation type.

        A single frame stands for both of a pair.
        """
        return self.features(self.patches(frames), frames.shape[1] // self.config.patch_size, frames.shape[2] // self.config.patch_size)

    def patches(self, frames: Tensor) -> Tensor:
        """Normalised fp32 `[patches, values]`: block by block, row and column in a block; values are channel, frame, row, column."""
        side, merge, times = self.config.patch_size, self.config.spatial_merge_size, self.config.temporal_patch_size
        values = (frames.to(self.device).permute(0, 3, 1, 2).float() / 255 - self._mean) / self._scale
        values = values.expand(times, -1, -1, -1)
        down, across = values.shape[2] // (side * merge), values.shape[3] // (side * merge)
        blocks = values.reshape(times, -1, down, merge, side, across, merge, side)
        return blocks.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(down * across * merge * merge, -1)

    def features(self, patches: Tensor, down: int, across: int) -> Tensor:
        """Rows `[down * across / merge^2, D]` of a grid of `down` x `across` patches, block by block."""
        turns = self._turns(down, across)
        h = F.linear(patches.to(self.dtype), *self._embed)
        for block in self._blocks:
            h = block(h, turns)
        h = F.linear(self._norm(h).reshape(-1, self._downsample[0].shape[1]), *self._downsample)
        return self._merger(h)

    def _turns(self, down: int, across: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine fp32 `[patches, 1, head width]`: rows turn the first quarter of a head, columns the second, and again."""
        merge, half = self.config.spatial_merge_size, self.config.hidden_size // self.config.num_heads // 2
        theta = 1.0 / self.config.rope_theta ** (torch.arange(0, half, 2, dtype=torch.float32, device=self.device) / half)
        sides = (torch.arange(down, device=self.device), torch.arange(across, device=self.device))
        places = (grid.reshape(down // merge, merge, across // merge, merge) for grid in torch.meshgrid(*sides, indexing="ij"))
        angles = torch.cat([place.transpose(1, 2).reshape(-1, 1).float() * theta for place in places], -1)
        angles = torch.cat([angles, angles], -1).unsqueeze(1)
        return angles.cos(), angles.sin()


class _Block:
    """Attention over all patches of the segment, then a clamped SwiGLU, each behind a norm and beside a skip."""

    def __init__(self, params: Params, config: VisionConfig) -> None:
        hidden, self._heads = config.hidden_size, config.num_heads
        self._limit, width = config.swiglu_limit, config.hidden_size // config.num_heads
        self._norm1, self._norm2 = (RmsNorm(params, name, hidden, config.rms_norm_eps) for name in ("norm1", "norm2"))
        self._q_norm, self._k_norm = (RmsNorm(params, f"attn.{name}_norm", width, config.rms_norm_eps) for name in "qk")
        self._qkv, self._proj = _affine(params, "attn.qkv", hidden, 3 * hidden), _affine(params, "attn.proj", hidden, hidden)
        inner = config.intermediate_size
        self._gate, self._up = (_affine(params, f"mlp.{name}_proj", hidden, inner) for name in ("gate", "up"))
        self._down = _affine(params, "mlp.down_proj", inner, hidden)

    def __call__(self, h: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = F.linear(self._norm1(h), *self._qkv).view(len(h), 3, self._heads, -1).unbind(1)
        heads = (_turned(self._q_norm(q), turns), _turned(self._k_norm(k), turns), v)
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in heads)
        out = F.scaled_dot_product_attention(q, k, v)
        h = h + F.linear(out[0].transpose(0, 1).reshape(len(h), -1), *self._proj)
        x = self._norm2(h)
        return h + F.linear(swiglu(F.linear(x, *self._gate), F.linear(x, *self._up), self._limit), *self._down)


class _Merger:
    """The last projection: norm, GELU, clamped SwiGLU; no biases but the norm's."""

    def __init__(self, params: Params, config: VisionConfig) -> None:
        out, inner = config.out_hidden_size, config.projection_intermediate_size
        self._limit, self._proj = config.swiglu_limit, params.dense("proj", out, out)
        self._norm = [params.tensor(f"post_projection_norm.{part}", out) for part in ("weight", "bias")]
        self._gate, self._up = (params.dense(f"{name}_proj", out, inner) for name in ("gate", "up"))
        self._down = params.dense("down_proj", inner, out)

    def __call__(self, h: Tensor) -> Tensor:
        x = F.gelu(layer_norm(F.linear(h, self._proj), self._norm[0], self._norm[1], _MERGER_EPS))
        return F.linear(swiglu(F.linear(x, self._gate), F.linear(x, self._up), self._limit), self._down)


def _affine(params: Params, name: str, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    return params.dense(name, inputs, outputs), params.tensor(f"{name}.bias", outputs)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """`x [patches, heads, width]`; value i turns with value i + width / 2."""
    cosine, sine = turns
    first, second = x.float().chunk(2, -1)
    return (x.float() * cosine + torch.cat([-second, first], -1) * sine).to(x.dtype)
