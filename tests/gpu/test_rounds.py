"""Steps from one piece of memory on a CUDA device: captured ones have the bits of plain ones, both the values of the plain torch path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint
from lockstep.weights.dense import coded_weights

pytestmark = pytest.mark.gpu
EMBEDDED = Path(__file__).parents[2] / "embedded"
LENGTHS = (3, 1, 4, 2)
KEEPS = ((3, 1, 2, 0), (1, 1, 4, 2), (2, 0, 1, 1))


@pytest.fixture(scope="module", params=[("bf16", "bf16"), ("q4", "fp8")], ids=lambda forms: forms[0])
def model_and_kv(request: pytest.FixtureRequest) -> tuple[GlmModel, str]:
    dense, kv = request.param
    checkpoint = Checkpoint(EMBEDDED)
    return GlmModel.load(coded_weights(checkpoint, dense, "cuda"), checkpoint.config, "cuda", torch.bfloat16), kv


@torch.inference_mode()
def told(model: GlmModel, kv: str, prompts: tuple[int, ...], path: str) -> tuple[list[Tensor], list[str]]:
    """What three steps of four windows, cut differently, return, and the hashes of what they leave."""
    pool = TokenPool(model.config, 80, "cuda", torch.bfloat16, kv)
    slots = StateSlots(model.config, 4, "cuda", torch.bfloat16)
    model.attach(pool, slots)
    assert model.rounds is not None
    if path == "plain":
        model.rounds = None
    else:
        model.rounds.graphs = path == "captured"
    sequences = [Sequence(slot, list(range(20 * slot, 20 * slot + 20))) for slot in range(4)]
    for sequence, length in zip(sequences, prompts, strict=True):
        slots.reset(sequence.slot)
        model.run_prompt(sequence, [(7 * at + sequence.slot) % 2000 for at in range(length)])
    found = []
    for step, keep in enumerate(KEEPS):
        windows = [(one, [(11 * at + 5 * step + one.slot) % 2000 for at in range(n)]) for one, n in zip(sequences, LENGTHS, strict=True)]
        output = model.run_step(windows, (1, 3))
        found += [part.clone() for part in (output.hidden, output.taps, model.logits(output))]
        model.commit(windows, [min(n, kept) for n, kept in zip(LENGTHS, keep, strict=True)])
    return found, [model.state_hash(sequence) for sequence in sequences]


@pytest.mark.parametrize("prompts", [(70, 5, 130, 64), (300, 70, 270, 262)], ids=["short", "past what a row attends"])
def test_a_captured_step_has_the_bits_of_a_plain_one(model_and_kv: tuple[GlmModel, str], prompts: tuple[int, ...]):
    captured, states = told(*model_and_kv, prompts, "captured")
    eager, same_states = told(*model_and_kv, prompts, "eager")
    assert states == same_states
    assert all(torch.equal(one, other) for one, other in zip(captured, eager, strict=True))
    plain, _ = told(*model_and_kv, prompts, "plain")
    for one, other in zip(captured, plain, strict=True):
        assert float((one.double() - other.double()).norm() / other.double().norm()) < 4e-2
