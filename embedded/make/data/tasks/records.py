"""Lists of records as JSON: GPU metrics and the like, with values that follow from the index, so that long replies are predictable."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from embedded.make.data.conversation import to_json
from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import CITIES, COLORS, NAMES, OBJECTS, tail
from embedded.make.data.split import Split, draw


def _gpu(i: int) -> dict[str, Any]:
    return {
        "gpu": i,
        "temperature_c": 60 + i,
        "power_w": 200 + 10 * i,
        "memory_used_mib": 1000 * (i + 1),
        "utilization_percent": 50 + 3 * i,
    }


def _user(i: int) -> dict[str, Any]:
    return {"id": i + 1, "name": NAMES[i], "age": 20 + i, "active": i % 2 == 0}


def _product(i: int) -> dict[str, Any]:
    return {"id": i + 1, "item": OBJECTS[i], "color": COLORS[i % len(COLORS)], "price": i + 1.5}


def _city(i: int) -> dict[str, Any]:
    return {"city": CITIES[i], "temperature_c": 10 + i, "sunny": i % 2 == 0}


KINDS: tuple[tuple[str, Callable[[int], dict[str, Any]], int], ...] = (
    ("GPU metrics objects", _gpu, 16),
    ("GPU metrics objects", _gpu, 16),
    ("user objects", _user, 16),
    ("product objects", _product, 16),
    ("city weather objects", _city, 16),
)
FORMS = (
    "Write a JSON array of {n} {what}.",
    "Return a JSON array with {n} {what}. Reply with JSON only.",
    "Generate a JSON list of {n} {what}.",
    "Give me {n} {what} as a JSON array.",
    "Write JSON: an array of {n} {what}. No other text.",
)
UNCOUNTED = (
    "Write a JSON array of {what}.",
    "Generate a JSON catalog of {what}.",
    "Produce a JSON array of {what}, one object after the other. JSON only.",
)


def records(rng: Random, split: Split) -> Exchange:
    """A counted array, or twelve records when no number is given."""

    def make() -> tuple[str, int, str]:
        what, _, most = rng.choice(KINDS)
        return what, rng.randrange(2, most + 1), rng.choice(FORMS)

    if rng.random() < 0.3:
        what, row, _ = rng.choice(KINDS)
        number, question = 12, rng.choice(UNCOUNTED).format(what=what)
    else:
        what, number, form = draw(split, "records", make, str)
        question = form.format(n=number, what=what)
    row = next(maker for name, maker, _ in KINDS if name == what)
    lines = ",\n".join("  " + to_json(row(i)) for i in range(number))
    thoughts = think(
        f"The user wants {number} {what}.",
        ["Each object has the same keys.", f"The last one has index {number - 1}."],
        "I write the array.",
    )
    return Exchange(ask(question + tail(rng), f"[\n{lines}\n]", thoughts))
