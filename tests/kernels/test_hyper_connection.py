"""Hyper-connection mixes against the published formulas in float64, rows that do not see each other, and the check at load."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fixtures import float64
from lockstep.kernels.hyper_connection import collapse, host, merge, ref, site, split

torch.set_num_threads(1)
H, D = 4, 64


def parameters() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    return torch.randn(24, H * D, generator=draw) * 0.1, torch.randn(3, generator=draw), torch.randn(24, generator=draw)


@pytest.mark.parametrize("rows", [8, 24, 64])
@pytest.mark.parametrize("on_host", [True, False])
def test_split_has_the_published_values(rows: int, on_host: bool) -> None:
    at = site(*(fn_scale_base := parameters()), 1e-6, 1e-5, 20)
    at = at if on_host else replace(at, host=None)
    streams = torch.randn(rows, H, D)
    for found, wanted in zip(split(streams, at), float64.hyper_connection(streams, *fn_scale_base, 1e-6, 1e-5, 20), strict=True):
        assert torch.allclose(found.double(), wanted, atol=2e-6)


def test_merge_feeds_incoming_stream_i_to_outgoing_stream_j_by_comb_i_j() -> None:
    streams, branch, post, comb = torch.randn(8, H, D), torch.randn(8, D), torch.rand(8, H), torch.rand(8, H, H)
    found = merge(streams, branch, post, comb).double()
    for j in range(H):
        wanted = post[:, j, None].double() * branch.double()
        for i in range(H):
            wanted = wanted + comb[:, i, j, None].double() * streams[:, i].double()
        assert torch.allclose(found[:, j], wanted, atol=1e-5)


def test_collapse_is_the_plain_mean() -> None:
    streams = torch.randn(8, H, D)
    assert torch.allclose(collapse(streams).double(), streams.double().mean(1), atol=1e-6)


@pytest.mark.parametrize("on_host", [True, False])
def test_a_rows_bits_do_not_depend_on_count_and_place(on_host: bool) -> None:
    at = site(*parameters(), 1e-6, 1e-5, 20)
    at = at if on_host else replace(at, host=None)
    row = torch.randn(H, D)
    seen = set()
    for rows, place in [(8, 0), (8, 7), (16, 9), (32, 31)]:
        streams = torch.randn(rows, H, D) * 10
        streams[place] = row
        seen.add(b"".join(part[place].numpy().tobytes() for part in split(streams, at)))
    assert len(seen) == 1


def test_the_host_check_notices_rows_that_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    # Row by row, which holds with any library; whether rows may go together is the processor's library's to say.
    steps, plain = replace(host.steps(4, 1e-6, 20), together=False), host.sinkhorn
    assert host.rows_are_independent(steps, 4)
    monkeypatch.setattr(host, "sinkhorn", lambda comb, steps: plain(comb, steps) * (1 + 1e-3 * comb.mean()))
    assert not host.rows_are_independent(steps, 4)


def test_rows_that_may_not_go_together_go_one_by_one() -> None:
    steps, comb = host.steps(4, 1e-6, 20), torch.rand(5, 4, 4).numpy()
    apart = host.sinkhorn(comb.copy(), replace(steps, together=False))
    assert apart.tobytes() == b"".join(host.sinkhorn(row[None].copy(), steps).tobytes() for row in comb)


def test_host_and_plain_sinkhorn_agree() -> None:
    at = site(*parameters(), 1e-6, 1e-5, 20)
    assert at.host is not None
    comb = torch.rand(8, 4, 4)
    plain = ref.sinkhorn((comb / comb.sum(-1, keepdim=True) + 1e-6).view(8, 16), at).view(8, 4, 4)
    assert torch.allclose(torch.from_numpy(host.sinkhorn(comb.numpy().copy(), at.host.steps)), plain, atol=1e-6)


def test_a_site_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="hyper-connection base"):
        site(torch.randn(23, 64), torch.randn(3), torch.randn(23), 1e-6, 1e-5, 20)
