"""Plain PyTorch norms."""

import torch
from torch import Tensor


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return length.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (x * inverse_rms(x, eps)).to(x.dtype).mul_(weight)


def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
    return (x * inverse_rms(x, eps)).mul_(weight).mul_(torch.sigmoid(gate.float())).to(gate.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return torch.layer_norm(x, (x.shape[-1],), weight, bias, eps)
