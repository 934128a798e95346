"""Synthetic checkpoints: loaded like any other, of any depth, and alive: tokens are routed differently."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoints.__main__ import main
from checkpoints.synthetic import ONE_OF_TWO, make_synthetic
from fixtures.stepped_engine import SteppedEngine
from lockstep.core.types import EngineRequest, Sampling
from lockstep.kernels import experts
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint


def test_a_synthetic_checkpoint_serves_and_its_tokens_choose_different_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.set_num_threads(1)
    assert main(["synthetic", str(tmp_path), "--shapes", "embedded", "--layers", "6"]) == 0
    checkpoint = Checkpoint(tmp_path)
    model = GlmModel.load(checkpoint, checkpoint.config, "cpu")
    plain, seen = experts.apply, set()

    def watched(x, chosen, *rest):
        seen.update(tuple(sorted(row)) for row in chosen.tolist())
        return plain(x, chosen, *rest)

    monkeypatch.setattr(experts, "apply", watched)
    reply = SteppedEngine(model, 2276).serve([(0, EngineRequest("a", tuple(range(5, 90)), Sampling(temperature=0.0), 6))])["a"]
    assert len(reply.tokens) == 6
    assert len(seen) > 20


def test_the_same_seed_writes_the_same_bytes_and_another_one_others(tmp_path: Path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_synthetic(tmp_path / name, "embedded", 4, "cpu", seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert len(a) == len(c)
    assert a != c


def test_a_rank_of_two_has_half_of_what_is_split():
    size = ONE_OF_TWO
    assert (size.heads, size.linear_heads, size.expert_width, size.dense_width, size.vocab) == (32, 32, 1024, 6144, 77440)
    assert (size.hidden, size.experts, size.experts_per_token, size.layers) == (4096, 288, 8, 45)


def test_a_checkpoint_without_layers_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="needed: at least 1"):
        make_synthetic(tmp_path, "embedded", 0, "cpu", 1)
