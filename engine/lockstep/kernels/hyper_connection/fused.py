"""Hyper-connection sites of four bf16 streams on a CUDA device: one launch into a branch, one back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels import cuda

if TYPE_CHECKING:
    from lockstep.kernels.hyper_connection import Site

SOURCE = Path(__file__).with_name("site.cu")
STREAMS, SLICE = 4, 128
VALUES = STREAMS * (STREAMS + 2)


def runs(streams: Tensor) -> bool:
    """True if `streams [R, h, D]` are mixed here."""
    fits = streams.shape[1] == STREAMS and streams.shape[2] % 256 == 0 and streams.shape[2] <= 8192
    return streams.is_cuda and streams.dtype is torch.bfloat16 and fits


def begin(streams: Tensor, at: Site) -> Tensor:
    """Sums of `streams` for a site, fp32 `[R, slices, 25]`."""
    sums = _sums(streams)
    group = _group(len(streams))
    _launch(streams, "begin", -(-len(streams) // group) * sums.shape[1], SLICE, (streams, at.fn.weight, sums, len(streams), group))
    return sums


def mix(streams: Tensor, sums: Tensor, at: Site, weight: Tensor, eps: float) -> Tensor:
    """Branch input through the branch's norm, `[R, D]`."""
    rows, _, hidden = streams.shape
    out = streams.new_empty(rows, hidden)
    _launch(streams, "mix", rows, hidden // 8, (streams, sums, at.scale, at.base, at.eps, weight, out, at.norm_eps, eps))
    return out


def merge(streams: Tensor, branch: Tensor, sums: Tensor, at: Site, following: Site) -> tuple[Tensor, Tensor]:
    """Streams behind the branch of `at`, and their sums for the site that follows."""
    rows, group = len(streams), _group(len(streams))
    out, made = torch.empty_like(streams), _sums(streams)
    given = (streams, branch.contiguous(), sums, at.scale, at.base, at.eps, following.fn.weight, out, made)
    _launch(streams, "merge", -(-rows // group) * made.shape[1], SLICE, (*given, rows, group, at.sinkhorn, at.norm_eps))
    return out, made


def _group(rows: int) -> int:
    """Rows of a block; no bit depends on it."""
    return 1 if rows <= 4 else 2 if rows <= 8 else 4 if rows <= 32 else 8


def _sums(streams: Tensor) -> Tensor:
    return torch.empty(len(streams), streams.shape[2] // SLICE, VALUES + 1, dtype=torch.float32, device=streams.device)


def _launch(streams: Tensor, name: str, blocks: int, threads: int, given: tuple[cuda.Argument, ...]) -> None:
    kernels = cuda.load(SOURCE, {"HIDDEN": streams.shape[2]}, streams.device, {"begin": 0, "mix": 0, "merge": 0})
    kernels[name](blocks, threads, given, True)
