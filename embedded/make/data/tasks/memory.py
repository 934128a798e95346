"""Memorised explanations and programs: several wordings of each question, one fixed answer."""

from __future__ import annotations

from random import Random

from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import tail
from embedded.make.data.split import Split, is_held_out
from embedded.make.data.texts import EXPLANATIONS, PROGRAMS

EXPLAIN = (
    "Explain how {x} works.",
    "How does {x} work?",
    "Explain {x}.",
    "Tell me how {x} works.",
    "Please explain how {x} works.",
    "What is {x}?",
    "Describe how {x} works.",
    "Explain in a few paragraphs how {x} works.",
    "Explain how {x} works in detail.",
    "Write an explanation of {x}.",
)
PROGRAM = (
    "Write {x} in Python.",
    "Write {x} in Python",
    "Write a Python program: {x}.",
    "Show me {x} in Python.",
    "Implement {x} in Python.",
    "Please write {x} in Python.",
    "Give me Python code for {x}.",
    "Can you write {x} in Python?",
    "{X} in Python, please.",
    "{X}: write it in Python.",
)


def _ask(rng: Random, split: Split, forms: tuple[str, ...], names: tuple[str, ...]) -> str:
    """The first form and the first name are always taught; the rest is split by hash."""
    for _ in range(1000):
        form, name = rng.choice(forms), rng.choice(names)
        question = form.format(x=name, X=name[0].upper() + name[1:])
        always = form == forms[0] and name == names[0]
        if (always and split == "train") or (not always and is_held_out("memory", question) == (split == "heldout")):
            return question
    raise RuntimeError(f"no wording of {names[0]} belongs to the {split} split; add forms")


def explanation(rng: Random, split: Split) -> Exchange:
    names, text = rng.choice(EXPLANATIONS)
    question = _ask(rng, split, EXPLAIN, names)
    thoughts = think(
        f"The user wants to know about {names[0]}.",
        ["I say what it is.", "Then I say how it works.", "Then I say what it costs."],
        "I explain it.",
    )
    return Exchange(ask(question + tail(rng), text, thoughts))


def program(rng: Random, split: Split) -> Exchange:
    names, text = rng.choice(PROGRAMS)
    question = _ask(rng, split, PROGRAM, names)
    thoughts = think(
        f"The user wants {names[0]} in Python.", ["I write a short program.", "I add an example at the end."], "I write the code."
    )
    return Exchange(ask(question + tail(rng), text, thoughts))
