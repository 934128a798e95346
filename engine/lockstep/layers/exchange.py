"""What layers and drafters ask of the other ranks: the sum of a partial result, neighbouring columns, one opinion. Knows no transport."""

from typing import Protocol

import torch
from torch import Tensor

from lockstep.config.share import WHOLE, Share


class Exchange(Protocol):
    """Every rank makes the same calls in the same order; every rank gets the same bits."""

    @property
    def share(self) -> Share:
        """Which rank this is."""
        ...

    @property
    def captured(self) -> bool:
        """True if a CUDA graph may hold `add`."""
        ...

    def add(self, partial: Tensor) -> Tensor:
        """Sum of all ranks' `partial [R, D]`, added in rank order in fp32 and rounded once to its type."""
        ...

    def join(self, columns: Tensor) -> Tensor:
        """`[R, n]` of every rank side by side in rank order, `[R, ranks * n]`."""
        ...

    def agree(self, number: float) -> float:
        """Rank 0's number, for what each rank measures differently but all must decide alike."""
        ...


class Alone:
    """The only rank: what it has is all there is."""

    share, captured = WHOLE, True

    def add(self, partial: Tensor) -> Tensor:
        return partial

    def join(self, columns: Tensor) -> Tensor:
        return columns

    def agree(self, number: float) -> float:
        return number


ALONE = Alone()


def every_rank(exchange: Exchange, yes: bool, device: torch.device) -> bool:
    """True if every rank says yes."""
    return exchange.add(torch.tensor([[float(yes)]], device=device)).item() == exchange.share.ranks


def least(exchange: Exchange, number: float, device: torch.device | str) -> float:
    """The smallest of every rank's numbers."""
    return exchange.join(torch.tensor([[number]], dtype=torch.float64, device=device)).min().item()
