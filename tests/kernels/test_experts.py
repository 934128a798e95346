"""Routing and experts: order of equals, weights, values of both storage forms, and independence of company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fixtures import float64
from lockstep.kernels import experts
from lockstep.kernels.exl3 import Exl3Matrix, decode_outer
from lockstep.kernels.router import route

torch.set_num_threads(1)
D, F, E = 128, 256, 6
# Three, since a sum of two has no order.
SLOTS = 3


def test_routing_prefers_lower_ids_among_equals_and_leaves_the_correction_out_of_the_weights() -> None:
    logits = torch.zeros(8, 8)
    logits[0, 5] = 2.0
    correction = torch.zeros(8)
    correction[7] = 0.3
    chosen, weights = route(logits, correction, 3, 2.5)
    assert chosen[0].tolist() == [5, 7, 0]
    assert chosen[1].tolist() == [7, 0, 1]
    assert torch.allclose(weights[1], torch.full((3,), 2.5 / 3))
    strong = torch.sigmoid(torch.tensor(2.0)).item()
    assert weights[0, 0].item() == pytest.approx(2.5 * strong / (strong + 1.0))


def coded() -> tuple[list[Exl3Matrix], list[Exl3Matrix], list[Exl3Matrix]]:
    draw = torch.Generator().manual_seed(3)

    def matrix(k: int, n: int) -> Exl3Matrix:
        words = torch.randint(-(1 << 15), 1 << 15, (k // 16, n // 16, 64), generator=draw).to(torch.int16)
        return Exl3Matrix(words, (torch.randn(k, generator=draw) * 0.1).half(), torch.randn(n, generator=draw).half(), "mcg")

    gate, up = [matrix(D, F) for _ in range(E)], [matrix(D, F) for _ in range(E)]
    return gate, up, [matrix(F, D) for _ in range(E)]


def plain(matrices: list[Exl3Matrix]) -> list[Tensor]:
    return [decode_outer(m.trellis, m.suh, m.svh, m.codebook).T for m in matrices]


def company(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, D, generator=draw)
    chosen = torch.stack([torch.randperm(E, generator=draw)[:SLOTS] for _ in range(rows)])
    return x, chosen, torch.rand(rows, SLOTS, generator=draw)


def test_dense_experts_have_the_formulas_values() -> None:
    kinds = [[w.float() for w in plain(kind)] for kind in coded()]
    x, chosen, weights = company(24, 1)
    found = experts.apply(x, chosen, weights, experts.pack_dense(*kinds), 3.0)
    wanted = float64.experts(x, chosen, weights, [torch.stack(kind) for kind in kinds], 3.0)
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_coded_experts_have_the_values_of_their_expanded_weights_up_to_the_half_precision_rotation() -> None:
    matrices = coded()
    x, chosen, weights = company(24, 1)
    found = experts.apply(x, chosen, weights, experts.pack_exl3(*matrices), 3.0)
    wanted = float64.experts(x, chosen, weights, [torch.stack(plain(kind)) for kind in matrices], 3.0)
    assert (found - wanted).norm() <= 2e-3 * wanted.norm()


@pytest.mark.parametrize("form", ["dense", "coded"])
def test_a_rows_bits_do_not_depend_on_who_else_chose_its_experts(form: str) -> None:
    matrices = coded()
    if form == "dense":
        packed = experts.pack_dense(*([w.float() for w in plain(kind)] for kind in matrices))
    else:
        packed = experts.pack_exl3(*matrices)
    mine, chosen, weights = company(1, 9)
    alone = experts.apply(mine, chosen, weights, packed, 10.0)[0]
    for rows, place in [(2, 1), (7, 3), (32, 0), (32, 31), (64, 40)]:
        x, others, theirs = company(rows, rows)
        others[:] = chosen if rows == 32 else others
        x[place], others[place], theirs[place] = mine[0], chosen[0], weights[0]
        assert torch.equal(experts.apply(x, others, theirs, packed, 10.0)[place], alone)


def test_an_expert_with_a_bias_is_refused() -> None:
    gate, up, down = coded()
    biased = Exl3Matrix(down[0].trellis, down[0].suh, down[0].svh, "mcg", torch.zeros(D).half())
    with pytest.raises(ValueError, match="carries a bias"):
        experts.pack_exl3(gate, up, [biased, *down[1:]])
