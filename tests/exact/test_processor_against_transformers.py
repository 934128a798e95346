"""Canvases, tokens, pixels and sampled frames are those of transformers' processors for pictures and clips.

The clip processor needs torchvision, which has no build for every torch; its answers are in fixtures/clip_processor.json.
"""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lockstep.config.model import read_model_config
from lockstep.config.processor import read_processor_config
from pixels.__main__ import _picture
from pixels.canvas import canvas, sampled_frames

pytest.importorskip("transformers")
from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil

MODEL = Path(__file__).parents[2] / "embedded"
CLIPS = json.loads((Path(__file__).parents[1] / "fixtures" / "clip_processor.json").read_text())
NAMED = [(1, 1), (27, 29), (112, 112), (100, 170), (224, 224), (448, 448), (480, 640), (768, 1024), (1080, 1920), (2160, 3840), (10, 2000)]
RNG = random.Random(60)
SIZES = NAMED + [(RNG.randrange(1, 200 + 60 * at), RNG.randrange(1, 200 + 60 * at)) for at in range(60 - len(NAMED))]


@pytest.fixture(scope="module")
def reference() -> Glm5NextImageProcessorPil:
    told = json.loads((MODEL / "processor_config.json").read_text())["image_processor"]
    return Glm5NextImageProcessorPil(**{name: value for name, value in told.items() if name != "image_processor_type"})


def test_sixty_sizes_take_the_references_tokens(reference: Glm5NextImageProcessorPil) -> None:
    found = [canvas(*size, 28, 16, 8000).tokens(28) for size in SIZES]
    assert len(found) == 60
    assert found == [reference.get_number_of_image_patches(height, width) // 4 for height, width in SIZES]
    assert dict(zip(SIZES, found, strict=True))[(1080, 1920)] == 2691


@pytest.mark.parametrize("size", [(140, 196), (45, 31), (10, 300), (333, 517), (1000, 40), (1300, 900)])
def test_pixels_are_the_references(reference: Glm5NextImageProcessorPil, size: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(5).integers(0, 256, (*size, 3), np.uint8))
    out = io.BytesIO()
    image.save(out, "PNG")
    head, frames = _picture(out.getvalue(), {"block": 28, "least": 16, "most": 8000})
    wanted = reference(images=[image], return_tensors="pt")
    down, across = head["height"] // 14, head["width"] // 14
    assert wanted["image_grid_thw"].tolist() == [[1, down, across]]
    blocks = torch.frombuffer(bytearray(frames[0]), dtype=torch.uint8).view(down // 2, 2, 14, across // 2, 2, 14, 3)
    ours = blocks.permute(0, 3, 1, 4, 6, 2, 5).reshape(down * across, 3, 1, 14, 14).expand(-1, -1, 2, -1, -1)
    vision = read_model_config(MODEL).vision
    assert vision is not None
    rules = read_processor_config(MODEL, vision).pixels
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1, 1) for values in (rules.mean, rules.deviation))
    normal = ((ours / 255 - mean) / deviation).reshape(down * across, -1)
    assert (normal - wanted["pixel_values"]).abs().max().item() <= 2e-6


def test_clips_of_sixty_sizes_get_the_references_canvas() -> None:
    assert len(CLIPS["canvases"]) == 60
    for frames, height, width, most, high, wide in CLIPS["canvases"]:
        found = canvas(height, width, 28, 16, most, frames)
        assert (found.height, found.width) == (high, wide), (frames, height, width)


def test_the_references_frames_are_looked_at() -> None:
    assert len(CLIPS["samples"]) == 60
    for total, rate, most, indices in CLIPS["samples"]:
        assert sampled_frames(total, rate, 2.0, most) == indices, (total, rate, most)


def test_a_clip_shorter_than_half_a_second_gives_its_first_frame() -> None:
    assert sampled_frames(10, 30.0, 2.0, 128) == [0, 0]
