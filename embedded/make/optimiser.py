"""Muon for the matrices, Adam for the rest, and the schedule over the share of the time budget spent. Knows no model.

Muon: momentum, then the update's singular values are set near one by Newton-Schulz steps; scaled as Adam's updates are
(Moonlight's rule), so that one learning rate serves both. Source: Jordan et al. 2024, Liu et al. 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_ADAM_LEAVES = (
    "embed_tokens",
    "mlp.gate.weight",
    "conv1d",
    "hc_",
    "patch_embed",
    "downsample",
    "codebook",
    "ape",
    "base_kernel",
    "weights_proj",
)


def is_matrix(name: str, value: Tensor) -> bool:
    """True if Muon trains it."""
    return value.ndim >= 2 and not any(leaf in name for leaf in _ADAM_LEAVES)


def orthogonal(update: Tensor, steps: int = 5) -> Tensor:
    """`[..., a, b]` with singular values pressed to about one, by steps of bf16 products."""
    a, b, c = NEWTON_SCHULZ
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).to(update.dtype)


@dataclass(slots=True)
class Muon:
    """Groups matrices of one shape so that one batched product serves them all."""

    parameters: dict[str, Tensor]
    momentum: float = 0.95
    decay: float = 0.02
    _buffers: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    _groups: dict[tuple[int, ...], list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for value in self.parameters.values():
            self._groups.setdefault(tuple(value.shape), []).append(value)
        for shape, members in self._groups.items():
            self._buffers[shape] = torch.zeros((len(members), *shape), device=members[0].device)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, members in self._groups.items():
            grads = torch.stack([torch.zeros_like(m) if m.grad is None else m.grad for m in members])
            buffer = self._buffers[shape].lerp_(grads, 1 - self.momentum)
            update = orthogonal(grads.lerp(buffer, self.momentum))
            scale = 0.2 * max(shape[-2:]) ** 0.5
            torch._foreach_mul_(members, 1 - rate * self.decay)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(members, list(update.unbind(0)), alpha=-rate * scale)  # pyright: ignore[reportPrivateImportUsage]


@dataclass(slots=True)
class Optimiser:
    """Both optimisers over named parameters; names without gradient are left alone."""

    muon: Muon
    adam: torch.optim.Adam
    adam_share: float = 0.6

    @classmethod
    def of(cls, parameters: dict[str, Tensor], adam_eps: float = 1e-10) -> Optimiser:
        matrices = {name: value for name, value in parameters.items() if is_matrix(name, value)}
        others = [value for name, value in parameters.items() if name not in matrices]
        cuda = next(iter(parameters.values())).is_cuda
        return cls(Muon(matrices), torch.optim.Adam(others, lr=1e-3, betas=(0.9, 0.98), eps=adam_eps, fused=cuda))

    def step(self, rate: float) -> None:
        """One update with Muon's learning rate `rate`; Adam takes `adam_share` of it. Gradients are cleared."""
        self.muon.step(rate)
        for group in self.adam.param_groups:
            group["lr"] = rate * self.adam_share
        self.adam.step()
        for value in self.muon.parameters.values():
            value.grad = None
        self.adam.zero_grad(set_to_none=True)


def rate_at(share: float, step: int, peak: float, flat: float = 0.4, warm: int = 100) -> float:
    """Learning rate after `share` of the budget: linear warm-up over steps, flat, then linear to one hundredth."""
    fall = 1.0 if share < flat else max(0.0, (1 - share) / (1 - flat))
    return peak * min(1.0, (step + 1) / warm) * max(fall, 0.01)
