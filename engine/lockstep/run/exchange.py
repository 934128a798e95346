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

LOOPBACK = "127.0.0.1"
_MEET_S = 120.0


class TorchExchange:
    """The default process group, one rank a process."""

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
        dist.all_gather_single(every, own.contiguous())
        return every.view(self.share.ranks, *own.shape)


def in_rank_order(partials: Sequence[Tensor] | Tensor) -> Tensor:
    """Sum of the ranks' `partials`, in fp32, rounded once to their type."""
    # exact: gathered, then added here from rank 0 up; a library's reduction picks its order by size and algorithm.
    total = partials[0].float()
    for partial in partials[1:]:
        total = total + partial.float()
    return total.to(partials[0].dtype)


def listen() -> socket.socket:
    """Where the ranks will meet: a free port that only this machine can reach."""
    meeting = socket.create_server((LOOPBACK, 0))
    meeting.set_inheritable(False)
    return meeting


def meet(share: Share, port: int, device: str, timeout_s: float, listener: socket.socket | None = None) -> TorchExchange:
    """Wait for the other ranks at `port` and join them. Rank 0 hands in the `listener` of that port, which then belongs to the group.

    `device` is cpu or cuda; `timeout_s` bounds every later exchange. Raises RuntimeError if a rank does not come within 2 minutes.
    """
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        LOOPBACK,
        port,
        share.ranks,
        share.rank == 0,
        timedelta(seconds=_MEET_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener else None,
    )
    if device == "cuda":
        torch.cuda.set_device(share.rank)
    backend, limit = ("nccl" if device == "cuda" else "gloo"), timedelta(seconds=timeout_s)
    dist.init_process_group(backend, store=store, rank=share.rank, world_size=share.ranks, timeout=limit)
    return TorchExchange(share, device)


def part_ways() -> None:
    """Leave the group; every rank does, or none."""
    dist.destroy_process_group()
