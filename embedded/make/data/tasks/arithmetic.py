"""Small sums, differences and products, bare and as one-sentence stories."""

from __future__ import annotations

from random import Random

from embedded.make.data.conversation import Thoughts
from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import NAMES
from embedded.make.data.split import Split, draw

FORMS = ("What is {a} {op} {b}?", "Calculate {a} {op} {b}.", "{a} {op} {b} = ?", "How much is {a} {op} {b}?", "Compute {a} {op} {b}")
TERSE = ("What is {a} {op} {b}? Answer with only the number.", "What is {a} {op} {b}? Reply with the number only.")
THINGS = "apples books coins stones tickets letters bottles candles".split()  # noqa: SIM905


def operands(rng: Random) -> tuple[int, str, int]:
    """`a op b` with a result in 0..198; products up to 12 x 12."""
    op = rng.choice("++--*")
    if op == "*":
        return rng.randrange(2, 13), "*", rng.randrange(2, 13)
    top = 20 if rng.random() < 0.4 else 100
    a, b = rng.randrange(top), rng.randrange(top)
    return (a, "+", b) if op == "+" else (max(a, b), "-", min(a, b))


def result(a: int, op: str, b: int) -> int:
    return a + b if op == "+" else a - b if op == "-" else a * b


def steps(a: int, op: str, b: int) -> Thoughts:
    """Reasoning by tens and ones for + and -, by repeated addition for *."""
    value = result(a, op, b)
    conclusion = f"{a} {op} {b} = {value}."
    if op == "*":
        walk = [f"{a} * {b} is {b} times {a}."]
        walk += [f"{n} times {a} is {n * a}." for n in range(2, b + 1)]
        return think(f"I need to multiply {a} by {b}.", walk, conclusion, f"The other way: {b} * {a} = {value}.")
    tens, ones = b - b % 10, b % 10
    part = result(a, op, tens)
    walk = [f"{b} is {tens} and {ones}.", f"{a} {op} {tens} = {part}.", f"{part} {op} {ones} = {value}."]
    back = f"The other way: {value} {'-' if op == '+' else '+'} {b} = {a}."
    return think(f"I need to {'add' if op == '+' else 'subtract'}: {a} {op} {b}.", walk, conclusion, back)


def close(rng: Random) -> tuple[int, str, int]:
    """A difference below ten of numbers below a hundred, which `operands` seldom draws."""
    b = rng.randrange(100)
    return b + rng.randrange(10), "-", b


def _draw(rng: Random, split: Split) -> tuple[int, str, int]:
    make = close if split == "train" and rng.random() < 0.15 else operands
    return draw(split, "sum", lambda: make(rng), lambda item: f"{item[0]}{item[1]}{item[2]}")


def bare(rng: Random, split: Split) -> Exchange:
    a, op, b = _draw(rng, split)
    value = result(a, op, b)
    if rng.random() < 0.35:
        return Exchange(ask(rng.choice(TERSE).format(a=a, op=op, b=b), str(value), steps(a, op, b)))
    return Exchange(ask(rng.choice(FORMS).format(a=a, op=op, b=b), f"{a} {op} {b} = {value}", steps(a, op, b)))


def story(rng: Random, split: Split) -> Exchange:
    a, op, b = _draw(rng, split)
    while op == "*":
        a, op, b = _draw(rng, split)
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    change = f"gets {b} more" if op == "+" else f"gives away {b}"
    question = f"{name} has {a} {thing} and {change}. How many {thing} does {name} have now?"
    return Exchange(ask(question, f"{name} has {result(a, op, b)} {thing}.", steps(a, op, b)))
