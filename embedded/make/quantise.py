"""Encodes the trained experts in EXL3 and puts the decoded values in their place. Knows the encoder, not the trainer."""

from __future__ import annotations

import torch
from embedded.make.layers import Weights
from embedded.make.weights import gather, group_name
from torch import Tensor

from checkpoints.exl3_encode import encode_matrix
from checkpoints.layout import model_slots
from checkpoints.writer import BITS, CODEBOOK, generator
from lockstep.config.model import ModelConfig
from lockstep.kernels.exl3 import Exl3Matrix, decode_outer

PARTS = ("trellis", "suh", "svh")


@torch.no_grad()
def encode_experts(weights: Weights, config: ModelConfig, seed: int) -> tuple[dict[str, Tensor], float]:
    """Replaces every expert matrix in `weights` by what its EXL3 form decodes to. Returns the stored parts by published name and the
    mean relative error of a matrix."""
    coded: dict[str, Tensor] = {}
    errors: list[float] = []
    for slot in model_slots(config):
        if not slot.exl3:
            continue
        group, index = group_name(slot.name)
        assert index is not None
        value = weights[group][index]
        matrix = encode_matrix(value.T, BITS, CODEBOOK, generator(seed, slot.name))
        plain = decode_outer(matrix.trellis, matrix.suh, matrix.svh, CODEBOOK).T.to(value.dtype)
        errors.append(((plain - value).norm() / value.norm()).item())
        value.copy_(plain)
        prefix = slot.name.removesuffix(".weight")
        coded |= {f"{prefix}.{part}": getattr(matrix, part) for part in PARTS}
    return coded, sum(errors) / max(1, len(errors))


def coded_matrix(coded: dict[str, Tensor], name: str) -> Exl3Matrix:
    """The stored form of one published expert tensor."""
    prefix = name.removesuffix(".weight")
    trellis, suh, svh = (coded[f"{prefix}.{part}"] for part in PARTS)
    return Exl3Matrix(trellis, suh, svh, CODEBOOK)


@torch.no_grad()
def decoded_experts(coded: dict[str, Tensor], config: ModelConfig) -> Weights:
    """The training tensors of all experts, fp32, from their stored form."""
    plain: Weights = {}
    for slot in model_slots(config):
        if slot.exl3:
            matrix = coded_matrix(coded, slot.name)
            plain[slot.name] = decode_outer(matrix.trellis, matrix.suh, matrix.svh, CODEBOOK).T.float()
    return gather(plain)
