"""Norms and SwiGLU against their formulas in float64, and the rounding points the description fixes."""

from __future__ import annotations

import math

import pytest
import torch

from lockstep.kernels.rms_norm import gated_rms_norm, layer_norm, rms_norm
from lockstep.kernels.swiglu import swiglu

torch.set_num_threads(1)
EPS = 1e-5


def rms(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def test_rms_norm_has_the_formulas_values_and_survives_a_zero_row() -> None:
    x, weight = torch.randn(8, 256), torch.randn(256)
    x[3] = 0
    assert torch.allclose(rms_norm(x, weight, EPS).double(), rms(x) * weight, atol=1e-5)


def test_rms_norm_rounds_before_the_weight() -> None:
    x, weight = torch.randn(8, 256).bfloat16(), torch.randn(256).bfloat16()
    wanted = rms(x).bfloat16() * weight
    assert torch.equal(rms_norm(x, weight, EPS), wanted)


def test_gated_norm_rounds_once_after_weight_and_gate() -> None:
    x, weight, gate = torch.randn(8, 4, 32), torch.randn(32), torch.randn(8, 4, 32).bfloat16()
    wanted = rms(x) * weight * torch.sigmoid(gate.double())
    found = gated_rms_norm(x, weight, gate, EPS)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), wanted, rtol=2**-8, atol=1e-6)


def test_layer_norm_has_the_formulas_values() -> None:
    x, weight, bias = torch.randn(8, 32), torch.randn(32), torch.randn(32)
    y = x.double()
    wanted = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt() * weight + bias
    assert torch.allclose(layer_norm(x, weight, bias, 1e-6).double(), wanted, atol=1e-5)


def test_swiglu_clamps_the_gate_from_above_only() -> None:
    gate, up = torch.tensor([[-50.0, -3.0, 1.0, 50.0]]), torch.tensor([[2.0, -50.0, 50.0, 1.0]])
    low, high = gate.double().clamp(max=10), up.double().clamp(-10, 10)
    assert torch.allclose(swiglu(gate, up, 10.0).double(), low * torch.sigmoid(low) * high)
    assert swiglu(torch.tensor([[-3.0]]), torch.tensor([[1.0]]), 2.0).item() == pytest.approx(-3.0 / (1.0 + math.exp(3.0)), rel=1e-6)
