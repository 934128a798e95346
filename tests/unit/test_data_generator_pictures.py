"""Pictures of the data generator: what is asked is what is painted, and patches follow the published order."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from embedded.make.data.drawing import COLOR_NAMES, PALETTE, SHAPES, Shape, pack, paint, rgb
from embedded.make.data.pixels import patches, unpack
from embedded.make.data.tasks.pictures import clip, counted, single


@pytest.mark.parametrize("kind", SHAPES)
def test_a_shape_is_painted_around_its_centre_and_within_its_radius(kind: str) -> None:
    canvas = paint([Shape(kind, "red", 40, 60, 20)], "white")
    rows, columns = np.nonzero(canvas == COLOR_NAMES.index("red"))
    assert canvas[60, 40] == COLOR_NAMES.index("red")
    assert rows.min() >= 40
    assert rows.max() <= 80
    assert columns.min() >= 20
    assert columns.max() <= 60


def test_the_four_shapes_differ_in_area() -> None:
    areas = {int((paint([Shape(kind, "red", 56, 56, 20)], "white") > 2).sum()) for kind in SHAPES}
    assert len(areas) == 4


def test_a_shape_stands_where_the_answer_says() -> None:
    rng = Random(1)
    for _ in range(100):
        shape, place, _ = single(rng, "train")
        offset = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1), "center": (0, 0)}[place]
        assert [round((value - 56) / 30) for value in (shape.x, shape.y)] == list(offset)


def test_counted_shapes_do_not_touch() -> None:
    rng = Random(2)
    for _ in range(50):
        shapes, _ = counted(rng, "train")
        alone = sum(int((paint([shape], "white") > 2).sum()) for shape in shapes)
        assert int((paint(shapes, "white") > 2).sum()) == alone


def test_a_clip_moves_in_the_direction_of_its_answer() -> None:
    rng = Random(3)
    for _ in range(50):
        turns = clip(rng, "train").turns
        frames = turns[0].media[0].frames
        centres = [np.argwhere(frame > 2).mean(0) for frame in frames]
        down, across = centres[-1] - centres[0]
        way = ("down" if down > 0 else "up") if abs(down) > abs(across) else ("right" if across > 0 else "left")
        assert turns[1].content == way


def test_packing_four_bits_a_pixel_is_undone_by_unpack() -> None:
    frames = np.random.default_rng(0).integers(0, len(COLOR_NAMES), (3, 112, 112)).astype(np.uint8)
    assert (unpack(torch.from_numpy(pack(frames))).numpy() == frames).all()


def test_patches_follow_the_published_order_of_blocks_and_values() -> None:
    frames = np.random.default_rng(1).integers(0, len(PALETTE), (1, 2, 112, 112)).astype(np.uint8)
    found = patches(torch.from_numpy(frames))
    assert found.shape == (1, 64, 1176)
    # Patch 6 is the third of the second block: rows 14 to 27, columns 28 to 41. Value: channel 1, time 1, row 3, column 5.
    value = (rgb(frames[0, 1])[14 + 3, 28 + 5, 1] / 255 - 0.4578275) / 0.26130258
    assert found[0, 6, 1 * 392 + 196 + 3 * 14 + 5].item() == pytest.approx(value, abs=1e-5)
