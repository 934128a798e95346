"""JSON by instruction and by schema: the reply is one JSON value with the asked keys, types and values, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from embedded.make.data.conversation import to_json
from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import ANIMALS, CITIES, COLORS, NAMES, OBJECTS, PLAIN_WORDS, made_up_word, tail, word
from embedded.make.data.split import Split, draw

Field = tuple[str, Callable[[Random], Any]]


def _whole(low: int, high: int) -> Callable[[Random], int]:
    return lambda rng: rng.randrange(low, high)


def _decimal(high: int) -> Callable[[Random], float]:
    return lambda rng: rng.randrange(high) + rng.choice((0.5, 0.25, 0.75, 0.1, 0.9))


def _of(options: Sequence[str]) -> Callable[[Random], str]:
    return lambda rng: rng.choice(options)


def _boolean(rng: Random) -> bool:
    return rng.random() < 0.5


def _words(rng: Random) -> list[str]:
    return rng.sample(PLAIN_WORDS, rng.randrange(2, 5))


def _numbers(rng: Random) -> list[int]:
    return [rng.randrange(100) for _ in range(rng.randrange(2, 5))]


FIELDS: tuple[Field, ...] = (
    ("name", _of(NAMES)),
    ("city", _of(CITIES)),
    ("color", _of(COLORS)),
    ("animal", _of(ANIMALS)),
    ("item", _of(OBJECTS)),
    ("title", lambda rng: f"{word(rng)} {word(rng)}"),
    ("code", made_up_word),
    ("owner", _of(NAMES)),
    ("status", _of(("open", "closed", "pending"))),
    ("level", _of(("low", "medium", "high"))),
    ("id", _whole(1, 1000)),
    ("age", _whole(5, 100)),
    ("count", _whole(0, 100)),
    ("year", _whole(1900, 2030)),
    ("floor", _whole(1, 40)),
    ("seats", _whole(2, 60)),
    ("quantity", _whole(1, 50)),
    ("score", _whole(0, 101)),
    ("price", _decimal(100)),
    ("weight", _decimal(50)),
    ("temperature", _decimal(40)),
    ("rating", _decimal(5)),
    ("active", _boolean),
    ("done", _boolean),
    ("public", _boolean),
    ("verified", _boolean),
    ("tags", _words),
    ("colors", lambda rng: rng.sample(COLORS, rng.randrange(2, 4))),
    ("scores", _numbers),
    ("sizes", _numbers),
)
ONLY = (
    "Reply with JSON only.",
    "Answer with JSON only.",
    "Return only the JSON.",
    "Reply with only the JSON object and nothing else.",
    "No other text.",
)


def kind_of(value: Any) -> str:
    """The type as a question names it."""
    if isinstance(value, list):
        return f"array of {kind_of(value[0])}s"
    return {str: "string", bool: "boolean", int: "integer", float: "number"}[type(value)]


def schema_of(record: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of a flat record."""

    def part(value: Any) -> dict[str, Any]:
        return {"type": "array", "items": {"type": kind_of(value[0])}} if isinstance(value, list) else {"type": kind_of(value)}

    return {"type": "object", "properties": {key: part(value) for key, value in record.items()}, "required": list(record)}


def make_record(rng: Random) -> dict[str, Any]:
    """2 to 5 fields; one key in eight is any word, so that keys are copied and not known by heart."""
    fields = rng.sample(FIELDS, rng.choice((2, 3, 3, 4, 5)))
    return {word(rng) if rng.random() < 1 / 8 else name: value(rng) for name, value in fields}


def _spoken(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def question_for(rng: Random, record: dict[str, Any]) -> str:
    """One of six ways to ask for the record; types and values are always said."""
    typed = _and([f"{key} ({kind_of(value)})" for key, value in record.items()])
    valued = _and([f"{key} {_spoken(value)}" for key, value in record.items()])
    only = rng.choice(ONLY)
    form = rng.randrange(6)
    if form == 0:
        return f"Write a JSON object with the fields {typed}. Use {valued}. {only}"
    if form == 1:
        return f"Return a JSON object with the keys {_and(list(record))}. The values are: {valued}. {only}"
    if form == 2:
        lines = "\n".join(f"- {key}: {kind_of(value)}, {_spoken(value)}" for key, value in record.items())
        return f"Return a JSON object with these fields:\n{lines}\n{only}"
    if form == 3:
        return f"Make JSON from this: {valued}. {only}"
    if form == 4:
        return f"Answer with JSON that matches this schema: {to_json(schema_of(record))}\nUse {valued}. {only}"
    pairs = _and([f'the key "{key}" and the value {to_json(value)}' for key, value in record.items()])
    return f"Reply with a JSON object with {pairs}. {only}"


def json_object(rng: Random, split: Split) -> Exchange:
    record = draw(split, "json", lambda: make_record(rng), to_json)
    keys = _and(list(record))
    thoughts = think(
        "The user wants one JSON object.",
        [f"The keys are {keys}.", *(f"{key} is {_spoken(value)}." for key, value in record.items())],
        f"I write the object with {keys}.",
    )
    return Exchange(ask(question_for(rng, record) + tail(rng), to_json(record), thoughts))


def small_pair(rng: Random, split: Split) -> Exchange:
    """One key of any name with one value, as a smoke test asks for it."""
    key, value = draw(split, "pair", lambda: (word(rng), word(rng) if rng.random() < 0.7 else rng.randrange(100)), str)
    form = rng.choice(
        (
            'Reply with a JSON object with the key "{k}" and the value {v}.',
            'Return a JSON object with one key "{k}" whose value is {v}.',
            "Reply with exactly this JSON object: {o}",
            "Write a JSON object where {k} is {v}.",
        )
    )
    record = {key: value}
    question = form.format(k=key, v=to_json(value), o=to_json(record)) + (f" {rng.choice(ONLY)}" if rng.random() < 0.7 else "")
    thoughts = think("The user wants one JSON object.", [f"The key is {key} and the value is {value}."], f"I write the object with {key}.")
    return Exchange(ask(question, to_json(record), thoughts))


def json_array(rng: Random, split: Split) -> Exchange:
    """A JSON array of words or of a range of numbers."""
    first = rng.randrange(50)
    if rng.random() < 0.5:
        values: list[Any] = list(range(first, first + rng.randrange(3, 9)))
        what = f"the numbers from {values[0]} to {values[-1]}"
    else:
        values = draw(split, "array", lambda: rng.sample(PLAIN_WORDS, rng.randrange(2, 6)), str)
        what = f"the strings {_and(values)}"
    thoughts = think(f"The user wants a JSON array of {what}.", [f"It has {len(values)} values."], "I write the array.")
    return Exchange(ask(f"Return a JSON array of {what}. {rng.choice(ONLY[:3])}", to_json(values), thoughts))
