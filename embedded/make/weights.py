"""The trained values by published name, experts of one layer in one tensor, and how they start. Knows the layout, no forward."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn

from checkpoints.layout import Slot, model_slots
from lockstep.config.model import ModelConfig, TextConfig

TRUNK = "model.language_model."
VISUAL = "model.visual."
_EXPERT = re.compile(r"^(.*\.experts)\.(\d+)\.(.*)\.weight$")


def group_name(name: str) -> tuple[str, int | None]:
    """`....experts.3.up_proj.weight` -> (`....experts.up_proj`, 3); any other name -> (itself, None)."""
    found = _EXPERT.match(name)
    return (f"{found[1]}.{found[3]}", int(found[2])) if found else (name, None)


def gather(plain: dict[str, Tensor]) -> dict[str, Tensor]:
    """Published tensors -> training tensors: experts stacked `[E, out, in]`."""
    grouped: dict[str, dict[int, Tensor]] = {}
    out: dict[str, Tensor] = {}
    for name, value in plain.items():
        group, index = group_name(name)
        if index is None:
            out[name] = value
        else:
            grouped.setdefault(group, {})[index] = value
    for name, parts in grouped.items():
        out[name] = torch.stack([parts[i] for i in range(len(parts))])
    return out


def published(weights: dict[str, Tensor], name: str) -> Tensor:
    """The value of one published tensor."""
    group, index = group_name(name)
    return weights[group] if index is None else weights[group][index]


def _start(slot: Slot, text: TextConfig, generator: torch.Generator) -> Tensor:
    leaf = slot.name.rsplit(".", 1)[-1]
    normal = torch.randn(slot.shape, generator=generator)
    if "hc_" in leaf:
        return _stream_start(slot, text, normal)
    if leaf == "A_log":
        return torch.zeros(slot.shape)
    if leaf == "dt_bias":
        # decays from slow (-8) to fast (2) over the channels of each head
        return torch.linspace(-8, 2, text.linear_head_dim).repeat(text.linear_num_heads)
    if leaf == "index_kpool_compress_ape":
        return normal * 0.1
    if leaf in ("bias", "e_score_correction_bias"):
        return torch.zeros(slot.shape)
    if len(slot.shape) == 1:
        return torch.ones(slot.shape)
    if "embed_tokens" in slot.name:
        return normal * 0.05
    if "conv1d" in slot.name:
        taps = normal * 0.1
        taps[..., -1] += 0.7
        return taps
    fan_in = math.prod(slot.shape[1:])
    scale = 0.3 if slot.name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
    return normal * (scale / math.sqrt(fan_in))


def _stream_start(slot: Slot, text: TextConfig, normal: Tensor) -> Tensor:
    """Each site reads mostly one stream, writes to all, and passes the streams on nearly unmixed."""
    streams = text.hc_mult
    if slot.name.endswith("_fn"):
        return normal * (0.5 / math.sqrt(slot.shape[1]))
    if slot.name.endswith("_scale"):
        return torch.full(slot.shape, 0.5)
    layer = int(slot.name.split("layers.")[1].split(".")[0])
    base = torch.full(slot.shape, -2.0)
    base[(2 * layer + ("ffn" in slot.name)) % streams] = 0.5
    base[streams : 2 * streams] = 0.0
    base[2 * streams :] = (4 * torch.eye(streams)).flatten()
    return base


def initial(config: ModelConfig, seed: int) -> dict[str, nn.Parameter]:
    """Fresh fp32 parameters of trunk, MTP layer and vision tower."""
    generator = torch.Generator().manual_seed(seed)
    plain = {slot.name: _start(slot, config.text, generator) for slot in model_slots(config)}
    return {name: nn.Parameter(value) for name, value in gather(plain).items()}
