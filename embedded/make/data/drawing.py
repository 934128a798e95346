"""Flat pictures of coloured shapes as palette indices, uint8 [112, 112]: no antialiasing, so a PNG holds exactly the trained pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from embedded.make.data.conversation import FRAME_PIXELS

PALETTE: dict[str, tuple[int, int, int]] = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "gray": (200, 200, 200),
    "red": (220, 30, 30),
    "green": (30, 160, 60),
    "blue": (40, 70, 220),
    "yellow": (245, 215, 40),
    "purple": (140, 50, 170),
    "orange": (245, 140, 30),
}
COLOR_NAMES = tuple(PALETTE)
BACKGROUNDS = ("white", "white", "white", "black", "gray")
PAINTS = COLOR_NAMES[3:]
SHAPES = ("circle", "square", "triangle", "cross")


@dataclass(frozen=True, slots=True)
class Shape:
    """Centre and half width in pixels."""

    kind: str
    color: str
    x: int
    y: int
    radius: int


_ROWS = np.arange(FRAME_PIXELS, dtype=np.int32)[:, None]
_COLUMNS = np.arange(FRAME_PIXELS, dtype=np.int32)[None, :]


def paint(shapes: list[Shape], background: str) -> np.ndarray:
    """uint8 [112, 112] palette indices; later shapes cover earlier ones."""
    canvas = np.full((FRAME_PIXELS, FRAME_PIXELS), COLOR_NAMES.index(background), np.uint8)
    for shape in shapes:
        top, bottom = max(0, shape.y - shape.radius), min(FRAME_PIXELS, shape.y + shape.radius + 1)
        left, right = max(0, shape.x - shape.radius), min(FRAME_PIXELS, shape.x + shape.radius + 1)
        inside = _mask(shape, _ROWS[top:bottom], _COLUMNS[:, left:right])
        canvas[top:bottom, left:right][inside] = COLOR_NAMES.index(shape.color)
    return canvas


def _mask(shape: Shape, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    down, across, radius = rows - shape.y, columns - shape.x, shape.radius
    if shape.kind == "circle":
        return down * down + across * across <= radius * radius
    if shape.kind == "square":
        return (abs(down) <= radius * 7 // 8) & (abs(across) <= radius * 7 // 8)
    if shape.kind == "triangle":
        return 2 * abs(across) <= down + radius
    return (abs(down) <= radius // 3) & (abs(across) <= radius) | (abs(across) <= radius // 3) & (abs(down) <= radius)


def rgb(frame: np.ndarray) -> np.ndarray:
    """uint8 [..., 3] colours of palette indices."""
    return np.array([PALETTE[name] for name in COLOR_NAMES], np.uint8)[frame]


def pack(frames: np.ndarray) -> np.ndarray:
    """uint8 [n, 112, 112] palette indices -> uint8 [n, 112, 56], even columns in the low half of a byte, odd ones in the high half."""
    return frames[..., 0::2] | frames[..., 1::2] << 4
