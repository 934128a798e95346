"""Questions about pictures of coloured shapes (colour, shape, position, count) and about short clips of a moving shape."""

from __future__ import annotations

from random import Random

import numpy as np
from embedded.make.data.conversation import FRAME_PIXELS, Media, Turn
from embedded.make.data.drawing import BACKGROUNDS, PAINTS, SHAPES, Shape, paint
from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.split import Split, draw

HALF = FRAME_PIXELS // 2
PLACES = {"left": (26, HALF), "right": (86, HALF), "top": (HALF, 26), "bottom": (HALF, 86), "center": (HALF, HALF)}
STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
CELLS = [(x, y) for y in (20, HALF, 92) for x in (20, HALF, 92)]
ONE_WORD = " Answer with one word."
COLOR_ASKS = ("What color is the {s}?", "Which color does the {s} have?", "What is the color of the {s}?", "Name the color of the {s}.")
SHAPE_ASKS = ("What shape is in the picture?", "Which shape do you see?", "What shape is this?", "Name the shape in the picture.")
PLACE_ASKS = (
    "Where is the {s}: left, right, top or bottom?",
    "Where in the picture is the {s}? Answer left, right, top or bottom.",
    "Is the {s} at the left, right, top or bottom?",
)
COUNT_ASKS = ("How many shapes are in the picture?", "How many {s} are in the picture?", "Count the shapes.", "How many {s} do you see?")
SEE_ASKS = ("What is in the picture?", "Describe the picture.", "What do you see?", "What does the picture show?", "Describe this image.")
MOVE_ASKS = ("In which direction does the {s} move?", "Where does the {s} move: left, right, up or down?", "Which way does the {s} move?")
NUMBER_WORD = " Answer with a number."


def single(rng: Random, split: Split) -> tuple[Shape, str, str]:
    """One shape, its place and the background; held out by (shape, colour, place)."""

    def make() -> tuple[str, str, str]:
        return rng.choice(SHAPES), rng.choice(PAINTS), rng.choice(tuple(PLACES))

    kind, color, place = draw(split, "picture", make, "/".join)
    x, y = PLACES[place]
    shape = Shape(kind, color, x + rng.randrange(-6, 7), y + rng.randrange(-6, 7), rng.randrange(15, 24))
    return shape, place, rng.choice(BACKGROUNDS)


Asked = tuple[str, str, str]  # question, answer, the request for a short answer that may follow the question


def _exchange(rng: Random, media: Media, asked: list[Asked]) -> Exchange:
    """Questions about one picture in the order given; only the first turn carries it."""
    turns: list[Turn] = []
    for question, answer, closing in asked:
        short = closing if rng.random() < 0.6 else ""
        looked = ["I look at the shapes, their colors and their places."]
        thoughts = think("The user asks about the picture.", looked, f"The answer is {answer.rstrip('.')}.")
        turns += ask(question + short, answer, thoughts, () if turns else (media,))
    return Exchange(tuple(turns))


def _some(rng: Random, asked: list[Asked]) -> list[Asked]:
    """One question in half of the cases, otherwise several in random order."""
    return rng.sample(asked, 1 if rng.random() < 0.5 else rng.randrange(2, len(asked) + 1))


def _still(shapes: list[Shape], background: str) -> Media:
    return Media(paint(shapes, background)[None])


def article(color: str, kind: str) -> str:
    return f"{'An' if color == 'orange' else 'A'} {color} {kind}."


def one_shape(rng: Random, split: Split) -> Exchange:
    shape, place, background = single(rng, split)
    subject = rng.choice((shape.kind, "shape"))
    asked = [
        (rng.choice(COLOR_ASKS).format(s=subject), shape.color, ONE_WORD),
        (rng.choice(SHAPE_ASKS), shape.kind, ONE_WORD),
        (rng.choice(SEE_ASKS), article(shape.color, shape.kind), ""),
    ]
    if place != "center":
        asked.append((rng.choice(PLACE_ASKS).format(s=subject), place, ONE_WORD))
    return _exchange(rng, _still([shape], background), _some(rng, asked))


def two_shapes(rng: Random, split: Split) -> Exchange:
    """Two different shapes side by side or one above the other; asks for the colour of one, or for the kind of one colour."""
    first, _, background = single(rng, split)
    kind, color = rng.choice([k for k in SHAPES if k != first.kind]), rng.choice([c for c in PAINTS if c != first.color])
    spots = (("left", "right"), ("right", "left"), ("top", "bottom"), ("bottom", "top"))[rng.randrange(4)]
    shapes = []
    for (name, paint_name), spot in zip(((first.kind, first.color), (kind, color)), spots, strict=True):
        x, y = PLACES[spot]
        shapes.append(Shape(name, paint_name, x + rng.randrange(-4, 5), y + rng.randrange(-4, 5), rng.randrange(15, 22)))
    asked: list[Asked] = []
    for name, paint_name, spot in ((first.kind, first.color, spots[0]), (kind, color, spots[1])):
        asked.append((rng.choice(COLOR_ASKS).format(s=name), paint_name, ONE_WORD))
        asked.append((f"Which shape is {paint_name}?", name, ONE_WORD))
        asked.append((rng.choice(PLACE_ASKS).format(s=name), spot, ONE_WORD))
    return _exchange(rng, _still(shapes, background), _some(rng, asked))


def counted(rng: Random, split: Split) -> tuple[list[Shape], str]:
    """One to six equal shapes in different cells of a 3 x 3 grid; held out by (number, shape, colour)."""

    def make() -> tuple[int, str, str]:
        return rng.randrange(1, 7), rng.choice(SHAPES), rng.choice(PAINTS)

    number, kind, color = draw(split, "counted", make, str)
    cells = rng.sample(CELLS, number)
    radius = rng.randrange(10, 15)
    return [Shape(kind, color, x + rng.randrange(-3, 4), y + rng.randrange(-3, 4), radius) for x, y in cells], rng.choice(BACKGROUNDS)


def how_many(rng: Random, split: Split) -> Exchange:
    shapes, background = counted(rng, split)
    kind = shapes[0].kind
    plural = kind + ("es" if kind == "cross" else "s")
    asked = [(rng.choice(COUNT_ASKS).format(s=plural), str(len(shapes)), NUMBER_WORD)]
    if rng.random() < 0.3:
        asked.append(
            (f"Which color do the {plural} have?" if len(shapes) > 1 else rng.choice(COLOR_ASKS).format(s=kind), shapes[0].color, ONE_WORD)
        )
    return _exchange(rng, _still(shapes, background), asked)


def clip(rng: Random, split: Split) -> Exchange:
    """Four frames of one shape that moves along an axis; held out by (shape, colour, direction)."""

    def make() -> tuple[str, str, str]:
        return rng.choice(SHAPES), rng.choice(PAINTS), rng.choice(tuple(STEPS))

    kind, color, way = draw(split, "clip", make, "/".join)
    dx, dy = STEPS[way]
    stride, radius, background = rng.randrange(12, 18), rng.randrange(11, 18), rng.choice(BACKGROUNDS)
    off_x, off_y = rng.randrange(-8, 9), rng.randrange(-8, 9)
    frames = []
    for moment in (-1.5, -0.5, 0.5, 1.5):
        x, y = HALF + off_x + round(dx * stride * moment), HALF + off_y + round(dy * stride * moment)
        frames.append(paint([Shape(kind, color, x, y, radius)], background))
    media = Media(np.stack(frames), is_clip=True)
    asked = [(rng.choice(MOVE_ASKS).format(s=rng.choice((kind, "shape"))), way, ONE_WORD)]
    if rng.random() < 0.3:
        asked.append((rng.choice(COLOR_ASKS).format(s=kind), color, ONE_WORD))
    return _exchange(rng, media, asked)
