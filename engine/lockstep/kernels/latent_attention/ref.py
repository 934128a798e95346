"""Plain PyTorch latent attention: gather, score, weigh."""

import torch
from torch import Tensor

from lockstep.kernels import fp8
from lockstep.kernels.linear import batched


def attend(query: Tensor, latents: Tensor, keys: Tensor, bias: Tensor, scale: float) -> Tensor:
    context = fp8.read(latents, keys.view(-1), query.dtype).view(*keys.shape, -1)
    near = batched(query, context.transpose(1, 2)).float()
    share = torch.softmax(torch.add(bias, near, alpha=scale), -1)
    return batched(share.to(query.dtype), context)
