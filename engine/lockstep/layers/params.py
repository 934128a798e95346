"""How layers get their parameters: by published name and shape, placed on a device in the type they compute in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lockstep.config.share import Share
from lockstep.kernels.coded import CodedMatrix
from lockstep.kernels.exl3 import Exl3Matrix, decode_outer
from lockstep.layers.exchange import ALONE, Exchange

Matrix = Exl3Matrix | CodedMatrix | Tensor


class WeightSource(Protocol):
    """A checkpoint as layers see it. Both calls raise an error that names the tensor if it is missing or has another shape."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A plain tensor."""
        ...

    def matrix(self, prefix: str, k: int, n: int) -> Matrix:
        """Weight of a linear layer with k inputs and n outputs: EXL3, coded, or plain `[n, k]`."""
        ...


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters under one name prefix. `dtype` is the activation type, which plain weights take too.

    With several ranks `source` gives this rank's share of what is split, and layers ask for it by local sizes.
    """

    source: WeightSource
    prefix: str
    device: torch.device
    dtype: torch.dtype
    exchange: Exchange = ALONE

    @property
    def share(self) -> Share:
        """Which rank these parameters are for."""
        return self.exchange.share

    def under(self, name: str) -> Params:
        """The same source, `name.` further down."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def tensor(self, name: str, *shape: int) -> Tensor:
        """In the activation type."""
        return self.source.tensor(self.prefix + name, shape).to(self.device, self.dtype)

    def float(self, name: str, *shape: int) -> Tensor:
        """In fp32, for what the reference keeps there."""
        return self.source.tensor(self.prefix + name, shape).to(self.device, torch.float32)

    def matrix(self, name: str, k: int, n: int) -> Matrix:
        """As stored or coded; a plain `[n, k]` in the activation type."""
        found = self.source.matrix(self.prefix + name, k, n)
        return found.to(self.device, self.dtype) if isinstance(found, Tensor) else found.to(self.device)

    def dense(self, name: str, k: int, n: int) -> Tensor:
        """Plain `[n, k]` in the activation type; any other form is expanded exactly and rounded once."""
        found = self.matrix(name, k, n)
        if isinstance(found, Exl3Matrix):
            return decode_outer(found.trellis, found.suh, found.svh, found.codebook).T.to(self.dtype)
        return found if isinstance(found, Tensor) else found.decoded().to(self.dtype)
