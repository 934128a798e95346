"""Prompts in slices and steps in graphs on a CUDA device: the bits of tiles and of serial rows, near what plain torch computes."""

from __future__ import annotations

import pytest

from fixtures.cuda_bench import Bench
from fixtures.cuda_model import Memory, slices_and_steps_change_no_bit

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_slices_and_steps_of_a_model_change_no_bit(kv: str):
    slices_and_steps_change_no_bit(Bench("cuda"), kv, Memory(Bench("cpu"), kv).prompt(4096))
