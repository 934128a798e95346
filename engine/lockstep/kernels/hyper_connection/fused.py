"""Hyper-connection sites of four bf16 streams on a CUDA device: two launches a site, one for the branch's return."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels import cuda

if TYPE_CHECKING:
    from lockstep.kernels.hyper_connection import Site

SOURCE = Path(__file__).with_name("site.cu")
STREAMS, SLICE = 4, 256
VALUES = STREAMS * (STREAMS + 2)


def runs(streams: Tensor) -> bool:
    """True if `streams [R, h, D]` are mixed here."""
    return streams.is_cuda and streams.dtype is torch.bfloat16 and streams.shape[1] == STREAMS and streams.shape[2] % SLICE == 0


def split(streams: Tensor, at: Site) -> tuple[Tensor, Tensor, Tensor]:
    """See `hyper_connection.split`."""
    rows, _, hidden = streams.shape
    kernels, slices, parts = _kernels(hidden, streams.device), STREAMS * hidden // SLICE, _parts(hidden)
    streams = streams.contiguous()
    sums = torch.empty(rows, slices, VALUES + 1, dtype=torch.float32, device=streams.device)
    u, post, comb = (streams.new_empty(rows, *shape) for shape in ((hidden,), (STREAMS,), (STREAMS, STREAMS)))
    kernels["site_sums"](rows * slices, SLICE, (streams, at.fn.weight, sums), True)
    kernels["site_mix"](rows * parts, 256, (streams, sums, at.scale, at.base, at.eps, u, post, comb, at.sinkhorn, at.norm_eps), True)
    return u, post, comb


def merge(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """See `hyper_connection.merge`."""
    rows, _, hidden = streams.shape
    out = torch.empty_like(streams, memory_format=torch.contiguous_format)
    given = [part.contiguous() for part in (streams, branch, post, comb)]
    _kernels(hidden, streams.device)["merge"](rows * _parts(hidden), 256, (*given, out), True)
    return out


def _parts(hidden: int) -> int:
    """Blocks of a row; as `COLUMNS` in the source."""
    return hidden // (1024 if hidden % 1024 == 0 else 256)


def _kernels(hidden: int, device: torch.device) -> dict[str, cuda.Kernel]:
    return cuda.load(SOURCE, {"HIDDEN": hidden}, device, {"site_sums": 0, "site_mix": 0, "merge": 0})
