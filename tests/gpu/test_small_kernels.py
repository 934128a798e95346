"""Kernels between the products, on a CUDA device: values of the plain forms, and rows that do not see each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lockstep.kernels import hyper_connection, rms_norm
from lockstep.kernels.hyper_connection import ref as plain_sites
from lockstep.kernels.rms_norm import ref as plain_norms

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16


def draw(*size: int, seed: int = 0, kind: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed + sum(size))).to("cuda", kind)


def near(found: Tensor, wanted: Tensor, limit: float) -> bool:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm()) < limit


def rows_alone(run: Callable[[slice], Tensor], rows: int = 32) -> None:
    whole = run(slice(0, rows))
    for count in (1, 2, 3, 7, 8, 13, 16, 31):
        for first in {0, (rows - count) // 2, rows - count}:
            part = slice(first, first + count)
            assert torch.equal(run(part), whole[part]), f"{count} rows from {first}"


@pytest.mark.parametrize("width", [64, 128, 256, 512, 1536, 4096])
def test_norms(width: int):
    x, weight = draw(32, width, kind=BF16), 1 + draw(width, seed=1, kind=BF16)
    assert near(rms_norm.rms_norm(x, weight, 1e-5), plain_norms.rms_norm(x, weight, 1e-5), 2e-3)
    rows_alone(lambda part: rms_norm.rms_norm(x[part], weight, 1e-5))
    y, gate = draw(32, 4, width), draw(32, 4, width, seed=2, kind=BF16)
    found = rms_norm.gated_rms_norm(y, weight.float(), gate, 1e-5)
    assert near(found, plain_norms.gated_rms_norm(y, weight.float(), gate, 1e-5), 2e-3)
    rows_alone(lambda part: rms_norm.gated_rms_norm(y[part], weight.float(), gate[part], 1e-5))


@pytest.mark.parametrize("width", [256, 4096])
def test_hyper_connections(width: int):
    fn = [draw(24, 4 * width, seed=seed) * (4 * width) ** -0.5 for seed in (0, 1)]
    site, following = (hyper_connection.site(one, 1 + draw(3), draw(24, seed=3), 1e-6, 1e-5, 20) for one in fn)
    streams, branch, weight = draw(32, 4, width, kind=BF16), draw(32, width, kind=BF16), 1 + draw(width, seed=1, kind=BF16)

    def run(part: slice) -> tuple[Tensor, ...]:
        flow = hyper_connection.Flow(streams[part], site)
        first = flow.enter(weight, 1e-5)
        flow.leave(branch[part], following)
        return first, flow.streams, flow.enter(weight, 1e-5)

    first, merged, second = run(slice(None))
    x, post, comb = hyper_connection.split_normed(streams, site, weight, 1e-5)
    plain = plain_sites.merge(streams, branch, post, comb)
    assert near(first, x, 4e-3)
    assert near(merged, plain, 4e-3)
    assert near(second, hyper_connection.split_normed(merged, following, weight, 1e-5)[0], 4e-3)
    for index in range(3):
        rows_alone(lambda part, index=index: run(part)[index])
