"""Pictures become the rows that transformers' tower gives, and their pixels what its picture processor gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.config.processor import read_processor_config
from lockstep.layers.params import Params
from lockstep.model.vision import VisionTower
from lockstep.weights import Checkpoint

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

MODEL = Path(__file__).parents[2] / "embedded"
TOLERANCE = 1e-4
VISION = {
    "depth": 3, "hidden_size": 96, "num_heads": 3, "intermediate_size": 160, "out_hidden_size": 64, "projection_intermediate_size": 112,
    "swiglu_limit": 1.0, "in_channels": 3, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint(MODEL)


@pytest.fixture(scope="module")
def tower(checkpoint: Checkpoint) -> VisionTower:
    vision = checkpoint.config.vision
    assert vision is not None
    params = Params(checkpoint, "model.visual.", torch.device("cpu"), torch.float32)
    return VisionTower(params, vision, read_processor_config(MODEL, vision).pixels)


def reference_tower(config: Any) -> torch.nn.Module:
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextVisionModel

    return Glm5NextVisionModel(config).eval()


def picture(height: int, width: int, frames: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (frames, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("height", "width"), [(112, 112), (28, 448), (252, 140), (84, 196)])
def test_rows_of_the_embedded_tower_are_the_references(tower: VisionTower, checkpoint: Checkpoint, height: int, width: int) -> None:
    config = transformers.Glm5NextConfig.from_pretrained(MODEL).vision_config
    reference = reference_tower(config)
    prefix = "model.visual."
    names = [name for name in checkpoint.source.names() if name.startswith(prefix)]
    reference.load_state_dict({name.removeprefix(prefix): checkpoint.source.get(name).float() for name in names})
    frames = picture(height, width)
    patches = tower.patches(frames)
    with torch.no_grad():
        wanted = reference(patches, torch.tensor([[1, height // 14, width // 14]])).pooler_output
    found = tower.rows(frames)
    assert found.shape == wanted.shape == (height * width // 784, 256)
    assert (found - wanted).abs().max().item() <= TOLERANCE


class Stored:
    """A reference tower's tensors as layers ask for them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._tensors = model.state_dict()

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        assert tuple(self._tensors[name].shape) == shape, name
        return self._tensors[name]

    def matrix(self, prefix: str, k: int, n: int) -> Tensor:
        return self.tensor(f"{prefix}.weight", (n, k))


def test_a_random_tower_of_other_sizes_with_clamps_at_work_is_the_references() -> None:
    from lockstep.config.model import VisionConfig

    generator = torch.Generator().manual_seed(3)
    reference = reference_tower(transformers.models.glm5_next.configuration_glm5_next.Glm5NextVisionConfig(**VISION))
    with torch.no_grad():
        for values in reference.parameters():
            spread = 0.1 if values.ndim == 1 else 1 / math.sqrt(values[0].numel())
            values.copy_(float(values.ndim == 1) + spread * torch.randn(values.shape, generator=generator))
    pixels = read_processor_config(MODEL, Checkpoint(MODEL).config.vision).pixels  # pyright: ignore[reportArgumentType]
    params = Params(Stored(reference), "", torch.device("cpu"), torch.float32)
    tower = VisionTower(params, VisionConfig(**VISION, rope_theta=10000.0), pixels)
    clip = picture(84, 140, frames=4)
    pairs = [clip[:2], clip[2:]]
    with torch.no_grad():
        wanted = reference(torch.cat([tower.patches(pair) for pair in pairs]), torch.tensor([[2, 6, 10]])).pooler_output
    found = torch.cat([tower.rows(pair) for pair in pairs])
    assert (found - wanted).abs().max().item() <= TOLERANCE
    assert wanted.abs().max().item() > 0.1


def test_the_training_form_agrees(tower: VisionTower, checkpoint: Checkpoint) -> None:
    from embedded.make.vision import tower as training_form

    names = [name for name in checkpoint.source.names() if name.startswith("model.visual.")]
    weights = {name.removeprefix("model.visual."): checkpoint.source.get(name).float() for name in names}
    frames = picture(112, 112)
    wanted = training_form(tower.patches(frames)[None], weights, checkpoint.config.vision)[0]  # pyright: ignore[reportArgumentType]
    assert (tower.rows(frames) - wanted).abs().max().item() <= TOLERANCE


def test_patches_are_those_of_the_reference_processor(tower: VisionTower) -> None:
    from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil

    frames = picture(140, 196)
    wanted = Glm5NextImageProcessorPil()(images=[frames[0].numpy()], return_tensors="pt")
    assert wanted["image_grid_thw"].tolist() == [[1, 10, 14]]
    assert (tower.patches(frames) - wanted["pixel_values"]).abs().max().item() <= 2e-6


def test_rows_of_a_picture_do_not_depend_on_what_was_computed_before(tower: VisionTower) -> None:
    one, other = picture(112, 112, seed=1), picture(140, 84, seed=2)
    first = tower.rows(one)
    tower.rows(other)
    assert torch.equal(first, tower.rows(one))
