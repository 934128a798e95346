"""Partial sums and columns between ranks, over torch.distributed: gloo on the CPU, NCCL on GPUs. Its only importer.

Knows no plan and no model; a rank that is gone or hangs shows as a RuntimeError after `timeout_s`.
"""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.config.share import Share

_MEET = timedelta(minutes=2)


class TorchExchange:
    """The default process group, one rank a process."""

    # A replay would not be under the library's watch, and nobody has tried one.
    captured = False

    def __init__(self, share: Share, device: str) -> None:
        self.share, self._device = share, device

    def add(self, partial: Tensor) -> Tensor:
        """See `layers.exchange.Exchange`."""
        return in_rank_order(self._gather(partial))

    def join(self, columns: Tensor) -> Tensor:
        """See `layers.exchange.Exchange`."""
        return torch.cat(tuple(self._gather(columns)), -1)

    def agree(self, number: float) -> float:
        """See `layers.exchange.Exchange`."""
        return float(self._gather(torch.tensor([[number]], dtype=torch.float64, device=self._device))[0])

    def _gather(self, own: Tensor) -> Tensor:
        """`own [R, n]` of every rank, `[ranks, R, n]`."""
        every = own.new_empty(self.share.ranks * own.shape[0], own.shape[1])
        # Up to PyTorch 2.12 only the second name is there, later ones warn of it.
        (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(every, own.contiguous())
        return every.view(self.share.ranks, *own.shape)


def in_rank_order(partials: Sequence[Tensor] | Tensor) -> Tensor:
    """Sum of the ranks' `partials`, in fp32, rounded once to their type."""
    # exact: gathered, then added here from rank 0 up; a library's reduction picks its order by size and algorithm.
    total = partials[0].float()
    for partial in partials[1:]:
        total = total + partial.float()
    return total.to(partials[0].dtype)


def meeting() -> str:
    """Where ranks meet, an init method of torch.distributed: `MASTER_ADDR` and `MASTER_PORT`, else this machine and a port free now."""
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "")
    if not port:
        with socket.create_server((host, 0)) as free:
            port = free.getsockname()[1]
    return f"tcp://{host}:{port}"


def meet(share: Share, address: str, device: str, timeout_s: float) -> TorchExchange:
    """Wait for the other ranks at the `address` that rank 0 has from `meeting`, and join them.

    `device` is cpu or cuda; `timeout_s` bounds every later exchange. Raises RuntimeError if a rank does not come within 2 minutes.
    """
    found = dist.rendezvous(address, share.rank, share.ranks, timeout=_MEET)  # pyright: ignore[reportPrivateImportUsage]
    store = next(iter(found))[0]
    if device == "cuda":
        torch.cuda.set_device(share.rank)
    backend, limit = ("nccl" if device == "cuda" else "gloo"), timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=share.rank, world_size=share.ranks, timeout=limit)
    return TorchExchange(share, device)


def part_ways() -> None:
    """Leave the group; every rank does, or none."""
    dist.destroy_process_group()
