"""From palette indices to the vision tower's input rows, on any device. Knows torch and the published patch layout, no file."""

from __future__ import annotations

import torch
from embedded.make.data.drawing import PALETTE

PATCH, MERGE = 14, 2
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., 56] of `drawing.pack` -> uint8 [..., 112] palette indices."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def patches(frames: torch.Tensor) -> torch.Tensor:
    """frames uint8 [n, 2, 112, 112] palette indices -> float32 [n, 64, 1176] normalised patches of the published layout.

    Order of patches: row block, column block, row in block, column in block (so four consecutive ones make one token). Values of
    a patch: channel, time, row, column.
    """
    count, times, height, width = frames.shape
    mean, deviation = (torch.tensor(values, device=frames.device) for values in (MEAN, DEVIATION))
    table = (torch.tensor(list(PALETTE.values()), device=frames.device, dtype=torch.float32) / 255 - mean) / deviation
    colors = table[frames.long()]
    rows, columns = height // (PATCH * MERGE), width // (PATCH * MERGE)
    blocks = colors.reshape(count, times, rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    return blocks.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(count, rows * columns * MERGE * MERGE, 3 * times * PATCH * PATCH)
