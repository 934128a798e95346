"""Copying and editing text and code: repeat, replace, change case, reverse lines, join, pick, rename a variable."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import ANIMALS, OBJECTS, PLAIN_WORDS, made_up_word, sentence
from embedded.make.data.split import Split, is_held_out

Edit = tuple[str, str, str]  # question, answer, one sentence that says what was done

VARIABLES = "total count items value result index name data size limit price score".split()  # noqa: SIM905
SNIPPETS = (
    "def add({v}, other):\n    return {v} + other",
    "{v} = 0\nfor number in numbers:\n    {v} = {v} + number\nprint({v})",
    "{v} = read_file(path)\nif {v}:\n    print({v})",
    "def first({v}):\n    if not {v}:\n        return None\n    return {v}[0]",
    "while {v} > 0:\n    print({v})\n    {v} = {v} - 1",
    "{v} = [1, 2, 3]\n{v}.append(4)\nprint(len({v}))",
)


def _repeat(rng: Random) -> Edit:
    text = " ".join(sentence(rng) for _ in range(rng.choice((1, 1, 2, 3))))
    form = rng.choice(("Repeat this text exactly: {t}", "Copy this text: {t}", "Write this again, word for word: {t}"))
    return form.format(t=text), text, "I copy the text word for word."


def _replace(rng: Random) -> Edit:
    old, other = rng.sample(ANIMALS, 2) if rng.random() < 0.5 else rng.sample(OBJECTS, 2)
    if rng.random() < 0.3:
        other = made_up_word(rng)
    text = " ".join((sentence(rng), f"The {old} is here.", sentence(rng))[rng.randrange(2) :])
    form = rng.choice(
        ('Replace "{o}" with "{n}" in this text: {t}', "Replace {o} with {n} in this text: {t}", "Change the word {o} to {n}: {t}")
    )
    return form.format(o=old, n=other, t=text), re.sub(rf"\b{old}\b", other, text), f"I replace {old} with {other}."


def _case(rng: Random) -> Edit:
    words = " ".join(rng.choice(PLAIN_WORDS) for _ in range(rng.randrange(1, 5)))
    if rng.random() < 0.5:
        return f"Write this in upper case: {words}", words.upper(), "I write every letter in upper case."
    return f"Write this in lower case: {words.upper()}", words, "I write every letter in lower case."


def _lines(rng: Random) -> Edit:
    lines = rng.sample(PLAIN_WORDS, rng.randrange(3, 7))
    listed = "\n".join(lines)
    if rng.random() < 0.5:
        return f"Reverse the order of these lines:\n{listed}", "\n".join(reversed(lines)), "I start with the last line."
    return (
        f"Number these lines:\n{listed}",
        "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1)),
        "I put a number before each line.",
    )


def _join(rng: Random) -> Edit:
    words = rng.sample(PLAIN_WORDS, rng.randrange(3, 7))
    if rng.random() < 0.5:
        return f"Join these words with commas: {' '.join(words)}", ", ".join(words), "I put a comma between the words."
    return f"Write each word on its own line: {' '.join(words)}", "\n".join(words), "I write one word on each line."


def _pick(rng: Random) -> Edit:
    words = rng.sample(PLAIN_WORDS, rng.randrange(3, 6))
    which, index = rng.choice((("first", 0), ("second", 1), ("last", -1)))
    return f"What is the {which} word of this list: {', '.join(words)}?", words[index], f"The {which} word is {words[index]}."


def _rename(rng: Random) -> Edit:
    old, other = rng.sample(VARIABLES, 2)
    code = rng.choice(SNIPPETS)
    question = f"Rename the variable {old} to {other} in this code:\n```python\n{code.format(v=old)}\n```"
    return question, f"```python\n{code.format(v=other)}\n```", f"I write {other} where the code has {old}."


EDITS: tuple[Callable[[Random], Edit], ...] = (_repeat, _repeat, _replace, _replace, _case, _lines, _join, _pick, _rename, _rename)


def edit(rng: Random, split: Split) -> Exchange:
    make = rng.choice(EDITS)
    question, answer, deed = make(rng)
    while is_held_out("edit", question) != (split == "heldout"):
        question, answer, deed = make(rng)
    thoughts = think("The user gives me a text to work on.", [deed, "I leave the rest as it is."], "I write the result.")
    return Exchange(ask(question, answer, thoughts))
