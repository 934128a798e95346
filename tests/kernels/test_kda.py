"""Delta attention: stepwise and chunk form against the recurrence in float64, and replay against serial steps bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fixtures.float64 import delta_rule
from lockstep.kernels import kda

torch.set_num_threads(1)
H, D = 4, 32
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def rows(count: int, seed: int = 0, steepest: float = 5.0) -> Inputs:
    draw = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    mixed, decay = normal(count, 3 * H * D), normal(count, H * D) * 3
    q, k, v, g = kda.inputs(mixed, decay, torch.ones(H, 1), torch.zeros(H, D), -steepest)
    return q, k, v, g, torch.sigmoid(normal(count, H, 1))


def test_inputs_are_unit_vectors_and_a_bounded_decay() -> None:
    mixed, decay = torch.randn(8, 3 * H * D), torch.randn(8, H * D)
    rate, offset = torch.rand(H, 1) + 0.5, torch.randn(H, D)
    q, k, v, g = kda.inputs(mixed, decay, rate, offset, -5.0)
    wide = mixed.double().view(8, 3, H, D)
    unit = wide / (wide.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.allclose(q.double(), unit[:, 0] * D**-0.5, atol=1e-6)
    assert torch.allclose(k.double(), unit[:, 1], atol=1e-6)
    assert torch.equal(v, mixed.view(8, 3, H, D)[:, 2])
    wanted = -5.0 * torch.sigmoid(rate.double() * (decay.double().view(8, H, D) + offset))
    assert torch.allclose(g.double(), wanted, atol=1e-6)


def test_steps_follow_the_delta_rule() -> None:
    inputs, state = rows(20), torch.randn(2, H, D, D)
    out = torch.empty(20, H, D)
    wanted, after = delta_rule(state[0], inputs)
    kda.step_window(state, torch.tensor([0]), torch.tensor([1]), inputs, [1] * 20, out)
    assert torch.allclose(out.double(), wanted, atol=1e-5)
    assert torch.allclose(state[1].double(), after, atol=1e-5)


@pytest.mark.parametrize("steepest", [0.01, 1.0, 5.0])
def test_the_chunk_form_follows_the_recurrence_over_several_tiles(steepest: float) -> None:
    inputs, state = rows(192, steepest=steepest), torch.randn(H, D, D)
    wanted, after = delta_rule(state, inputs)
    parts = []
    for at in range(0, 192, 64):
        q, k, v, g, beta = (t[at : at + 64] for t in inputs)
        out, state = kda.prompt_tile(state, (q, k, v, g, beta))
        parts.append(out)
    assert torch.allclose(torch.cat(parts).double(), wanted, atol=2e-5)
    assert torch.allclose(state.double(), after, atol=2e-5)


def test_the_steepest_decay_everywhere_stays_finite() -> None:
    q, k, v, g, beta = rows(64)
    state = torch.randn(H, D, D)
    steep = torch.full_like(g, -5.0)
    out, after = kda.prompt_tile(state, (q, k, v, steep, beta))
    wanted, wanted_after = delta_rule(state, (q, k, v, steep, beta))
    assert torch.allclose(out.double(), wanted, atol=1e-5)
    assert torch.allclose(after.double(), wanted_after, atol=1e-5)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 63])
def test_rows_without_a_token_leave_the_state_alone(count: int) -> None:
    inputs, state = rows(64), torch.randn(H, D, D)
    for values in inputs[3:]:
        values[count:] = 0
    out, after = kda.prompt_tile(state, inputs)
    q, k, v, g, beta = (t[:count] for t in inputs)
    wanted, wanted_after = delta_rule(state, (q, k, v, g, beta))
    assert torch.allclose(out[:count].double(), wanted, atol=1e-5)
    assert torch.allclose(after.double(), wanted_after, atol=1e-5)


def test_windows_of_several_sequences_have_the_bits_of_serial_steps() -> None:
    lengths = [5, 3, 3, 1]
    active = [4, 3, 3, 1, 1]
    state = torch.randn(8, H, D, D)
    serial = state.clone()
    inputs = rows(sum(lengths))
    out, alone = torch.empty(12, H, D), torch.empty(12, H, D)
    base, scratch = torch.tensor([0, 2, 4, 6]), torch.tensor([1, 3, 5, 7])
    kda.step_window(state, base, scratch, inputs, active, out)
    row = 0
    for step, count in enumerate(active):
        for sequence in range(count):
            q, k, v, g, beta = (t[row : row + 1] for t in inputs)
            source = 2 * sequence + (step > 0)
            place = torch.tensor([source]), torch.tensor([2 * sequence + 1])
            kda.step_window(serial, *place, (q, k, v, g, beta), [1], alone[row : row + 1])
            row += 1
    assert torch.equal(out, alone)
    assert torch.equal(state, serial)


def test_shapes_that_do_not_fit_are_refused() -> None:
    inputs, state = rows(2), torch.randn(2, H, D, D)
    with pytest.raises(ValueError, match="do not fit together"):
        kda.step_window(state, torch.tensor([0]), torch.tensor([1]), inputs, [2], torch.empty(2, H, D))
    with pytest.raises(ValueError, match="one tile of 64"):
        kda.prompt_tile(state[0], inputs)
