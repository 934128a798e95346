"""Plain PyTorch routing."""

import torch
from torch import Tensor


def route(logits: Tensor, correction: Tensor, count: int, factor: float) -> tuple[Tensor, Tensor]:
    score = torch.sigmoid(logits)
    chosen = torch.sort(score + correction, dim=1, descending=True, stable=True).indices[:, :count]
    weight = score.gather(1, chosen)
    return chosen, weight / weight.sum(1, keepdim=True).add_(1e-20) * factor
