"""Hyper-connections: how the streams feed a branch and how its output returns to them. Knows one site, not the layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.hyper_connection import fused, host, ref
from lockstep.kernels.linear import Packed, linear, pack
from lockstep.kernels.rms_norm import inverse_rms, rms_norm


@dataclass(frozen=True, slots=True)
class Site:
    """Parameters of one site for h streams of width D, all fp32: `fn` maps h D values to h (h + 2).

    `scale` and `base` `[h (h + 2)]` act on its output; `gain` and `shift` `[2 h]` turn its first 2 h sigmoids into pre and post.
    `rows` and `columns` `[h h, h h]` of ones and zeros add up a row or a column of the mixing matrix. `host` is None on other devices.
    """

    fn: Packed
    scale: Tensor
    base: Tensor
    gain: Tensor
    shift: Tensor
    rows: Packed
    columns: Packed
    eps: Tensor
    norm_eps: float
    sinkhorn: int
    host: host.HostSite | None


def site(fn: Tensor, scale: Tensor, base: Tensor, hc_eps: float, norm_eps: float, sinkhorn: int) -> Site:
    """Prepare a stored site: `fn [h (h + 2), h D]`, `scale [3]`, `base [h (h + 2)]`. `sinkhorn` counts column normalisations."""
    streams = next(h for h in range(1, base.numel() + 1) if h * (h + 2) >= base.numel())
    if base.numel() != streams * (streams + 2) or scale.numel() != 3:
        raise ValueError(f"hyper-connection base {tuple(base.shape)}, scale {tuple(scale.shape)}; needed: [h (h + 2)] and [3]")
    fn, scale, base = fn.float(), scale.float(), base.float()
    scale = scale.repeat_interleave(torch.tensor([streams, streams, streams * streams], device=base.device))
    ones = torch.ones(streams, streams, device=base.device)
    eye = torch.eye(streams, device=base.device)
    steps = _host_steps(streams, hc_eps, sinkhorn) if base.device.type == "cpu" else None
    return Site(
        fn=pack(fn),
        scale=scale,
        base=base,
        gain=base.new_tensor([1.0] * streams + [2.0] * streams),
        shift=base.new_tensor([hc_eps] * streams + [0.0] * streams),
        rows=pack(torch.kron(eye, ones)),
        columns=pack(torch.kron(ones, eye)),
        eps=base.new_full((streams * streams,), hc_eps),
        norm_eps=norm_eps,
        sinkhorn=sinkhorn,
        host=_host_site(fn * scale.unsqueeze(1), base, hc_eps, norm_eps, steps) if steps else None,
    )


def _host_site(fn: Tensor, base: Tensor, hc_eps: float, norm_eps: float, steps: host.Steps) -> host.HostSite:
    gain = np.array([[1.0], [2.0]], np.float32)
    sign = torch.where(torch.arange(len(base)) < len(base) - len(steps.others[0][1]), -1.0, 1.0)
    return host.HostSite(pack(fn * sign.unsqueeze(1)), (base * sign).numpy(), gain, np.float32(hc_eps), norm_eps, steps)


@lru_cache(maxsize=8)
def _host_steps(streams: int, eps: float, sinkhorn: int) -> host.Steps:
    steps = host.steps(streams, eps, sinkhorn)
    return replace(steps, together=host.rows_are_independent(steps, streams))


def split(streams: Tensor, at: Site) -> tuple[Tensor, Tensor, Tensor]:
    """Branch input and return weights for `streams [R, h, D]`.

    Returns u `[R, D]` in the streams' type, post `[R, h]` and comb `[R, h, h]` in that type too; comb's first index is the
    incoming stream. All arithmetic is fp32 (published description, hyper-connection section).
    """
    own = at.host
    if own is not None and host_rows.runs(streams):
        return host.split(streams, own)
    flat = streams.flatten(1).float()
    y = linear(flat, at.fn) * inverse_rms(flat, at.norm_eps)
    return ref.split(streams, torch.addcmul(at.base, y, at.scale), at)


def split_normed(streams: Tensor, at: Site, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """As `split`, with the branch input already through its `rms_norm`."""
    own = at.host
    if own is not None and host_rows.runs(streams):
        return host.split_normed(streams, own, weight, eps)
    u, post, comb = split(streams, at)
    return rms_norm(u, weight, eps), post, comb


def merge(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """`S'_j = post_j branch + sum_i comb[i, j] S_i`, `[R, h, D]` in the streams' type, sums over i in fp32."""
    return (host if host_rows.runs(streams) else ref).merge(streams, branch, post, comb)


class Flow:
    """The streams `[R, h, D]` on their way through the layers. `enter` a site's branch, then `leave` it for the site that follows."""

    def __init__(self, streams: Tensor, at: Site) -> None:
        self.streams, self._at = streams, at
        self._sums = fused.begin(streams, at) if fused.runs(streams) else None

    def enter(self, weight: Tensor, eps: float) -> Tensor:
        """The branch input `[R, D]` through its `rms_norm`."""
        if self._sums is not None:
            return fused.mix(self.streams, self._sums, self._at, weight, eps)
        x, *self._back = split_normed(self.streams, self._at, weight, eps)
        return x

    def leave(self, branch: Tensor, following: Site) -> None:
        """Return the branch's `[R, D]` to the streams."""
        if self._sums is not None:
            self.streams, self._sums = fused.merge(self.streams, branch, self._sums, self._at, following)
        else:
            self.streams = merge(self.streams, branch, *self._back)
        self._at = following


def collapse(streams: Tensor) -> Tensor:
    """Unweighted mean over the streams, `[R, D]`, fp32 sum, streams' type."""
    return (host if host_rows.runs(streams) else ref).collapse(streams)
