"""Counting integers upward over a range."""

from __future__ import annotations

from random import Random

from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import tail
from embedded.make.data.split import Split, draw

FORMS = (
    ("Count from {a} to {b}.", ", "),
    ("count from {a} to {b}", ", "),
    ("Count from {a} to {b}, numbers only.", ", "),
    ("Count upward from {a} to {b}. Numbers only.", ", "),
    ("Count integers upward from {a} to {b}. Reply with the numbers only.", ", "),
    ("Please count from {a} up to {b}.", ", "),
    ("Count from {a} to about {b}. Numbers only, no other text.", ", "),
    ("List the integers from {a} to {b}.", ", "),
    ("Write the numbers from {a} to {b}, separated by commas.", ", "),
    ("Write the numbers from {a} to {b}, separated by spaces.", " "),
    ("Count from {a} to {b}, one number per line.", "\n"),
    ("Write the numbers from {a} to {b}, one per line.", "\n"),
)


def interval(rng: Random) -> tuple[int, int]:
    """First and last number, both included, in 0..999; mostly short, one in eight up to 200 numbers long, one in ten from 1."""
    length = rng.randrange(60, 200) if rng.random() < 0.12 else rng.randrange(3, 40)
    first = 1 if rng.random() < 0.15 else rng.randrange(0, 100) if rng.random() < 0.5 else rng.randrange(0, 1000 - length)
    return first, first + length - 1


def count_up(rng: Random, split: Split) -> Exchange:
    if split == "train" and rng.random() < 0.04:
        first, last = 1, 200
    else:
        first, last = draw(split, "count", lambda: interval(rng), lambda ab: f"{ab[0]}-{ab[1]}")
    form, separator = rng.choice(FORMS)
    thoughts = think(
        f"The user wants the numbers from {first} to {last}.",
        [f"The first number is {first}.", "Each number is one more than the number before it.", f"The last number is {last}."],
        f"I count from {first} to {last}.",
    )
    answer = separator.join(str(number) for number in range(first, last + 1))
    return Exchange(ask(form.format(a=first, b=last) + tail(rng), answer, thoughts))
