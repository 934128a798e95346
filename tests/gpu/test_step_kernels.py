"""Kernels that a step has of its own on a CUDA device against plain ones: routing, the choice of pools, ties and companies included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.kernels import round as plans
from lockstep.kernels.indexer import paged
from lockstep.kernels.round import Round
from lockstep.kernels.router import choose, ref

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("inputs", "experts", "slots"), [(4096, 288, 8), (256, 16, 2)])
def test_routing(inputs: int, experts: int, slots: int):
    draw = torch.Generator("cuda").manual_seed(inputs)
    x = torch.randn(32, inputs, generator=draw, device="cuda").bfloat16()
    router = torch.randn(experts, inputs, generator=draw, device="cuda") * inputs**-0.5
    # Pairs of experts tie: the lower one wins.
    router[1::2] = router[::2]
    correction = torch.randn(experts // 2, generator=draw, device="cuda").repeat_interleave(2) * 0.1
    chosen, weights = choose.choose(x, router, correction, slots, 2.5, 32)
    exact = (x.double() @ router.double().T).float()
    wanted, shares = ref.route(exact, correction, slots, 2.5)
    same = (chosen == wanted).all(1)
    assert int(same.sum()) >= 30, "a logit's last bits may part experts that nearly tie, no more"
    assert torch.allclose(weights[same], shares[same], rtol=1e-4)
    assert bool((chosen[:, ::2] + 1 == chosen[:, 1::2]).all())
    for count in (1, 3, 8, 31):
        alone, theirs = choose.choose(x[:count].contiguous(), router, correction, slots, 2.5, count)
        assert torch.equal(alone, chosen[:count])
        assert torch.equal(theirs, weights[:count])
    cut, none = choose.choose(x, router, correction, slots, 2.5, torch.tensor([5], dtype=torch.int32, device="cuda"))
    assert torch.equal(cut[:5], chosen[:5])
    assert int(cut[5:].max()) == -1
    assert float(none[5:].abs().max()) == 0


def told(positions: list[list[int]], pages: int) -> tuple[Round, Tensor]:
    """A step of windows at `positions`, longest first, over pages in no order; and where each sequence's pools lie."""
    count, most, steps = sum(map(len, positions)), len(positions), len(positions[0])
    rows = [(owner, step) for step in range(steps) for owner in range(most) if step < len(positions[owner])]
    plan = torch.zeros(plans.plan_size(count, most), dtype=torch.int32)
    plan[:3] = torch.tensor([count, most, steps])
    fields = plan[plans.HEAD : plans.HEAD + plans.FIELDS * count].view(plans.FIELDS, count)
    fields[1] = torch.tensor([positions[owner][step] for owner, step in rows])
    fields[2:4] = torch.tensor(rows).T
    starts = [sum(len(own) > step for own in positions) for step in range(steps)]
    plan[plans.HEAD + plans.FIELDS * count :][: steps + 1] = torch.tensor([0, *starts]).cumsum(0)
    table = torch.randperm(most * pages, generator=torch.Generator().manual_seed(pages)).view(most, pages)
    none, scores = torch.empty(0), torch.empty(count, 16 * pages, device="cuda")
    at = Round(count, most, plan.cuda(), table.int().cuda(), none, none, none, none, none, scores)
    return at, (table.unsqueeze(2) * 16 + torch.arange(16)).flatten(1).cuda()


@pytest.mark.parametrize("length", [600, 5000, 40000])
def test_choice_of_pools(length: int):
    heads, width, limit, queries = 8, 32, 64, 512
    positions = [[length + at for at in range(4)], [260, 261], [length // 2]]
    at, places = told(positions, length // 64 + 1)
    draw = torch.Generator("cuda").manual_seed(length)
    query = torch.randn(at.rows, queries, generator=draw, device="cuda").bfloat16()
    projected = torch.randn(at.rows, 200, generator=draw, device="cuda").bfloat16()
    keys = torch.randn(places.numel(), width, generator=draw, device="cuda").bfloat16()
    keys[::3] = keys[0]
    found = paged.macros(heads, width, limit, queries, queries - heads * width, 200, 160, False)
    chosen = paged.choose(query, projected, keys, at, 0.1, found)
    assert at.scores is not None
    rows = [(owner, step) for step in range(4) for owner in range(3) if step < len(positions[owner])]
    for row, (owner, step) in enumerate(rows):
        pools = (positions[owner][step] + 1) // 4
        near = query[row, -heads * width :].view(heads, width).double() @ keys[places[owner, :pools]].double().T
        wanted = (near.relu() * projected[row, 160 : 160 + heads].double().unsqueeze(1) * 0.1).sum(0)
        scores = at.scores[row, :pools]
        assert float((scores - wanted).norm() / wanted.norm()) < 1e-5
        assert torch.equal(chosen[row].long(), torch.sort(scores, descending=True, stable=True).indices[:limit].sort().values)
