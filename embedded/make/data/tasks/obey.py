"""Exact-word obedience: the reply is the asked word or phrase and nothing else."""

from __future__ import annotations

from random import Random

from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import made_up_word, word
from embedded.make.data.split import Split, draw

FORMS = (
    "Reply with exactly: {w}",
    "Reply with exactly: {w}",
    "Reply with exactly this word and nothing else: {w}",
    "Reply with exactly one word: {w}",
    "Reply with the single word {w}.",
    "Say exactly: {w}",
    "Say {w}.",
    "Answer with only the word {w}.",
    "Respond with the word {w} and nothing else.",
    'Output exactly "{w}" and nothing else.',
    'Reply with "{w}".',
    "Please write only this: {w}",
    "Repeat after me: {w}",
    "Answer with exactly: {w}",
    "Write exactly this: {w}",
)


def phrase(rng: Random) -> str:
    """One word mostly; also codes, upper case, a capital letter and phrases of two or three words."""
    roll = rng.random()
    if roll < 0.55:
        return word(rng)
    if roll < 0.65:
        return word(rng).upper() if rng.random() < 0.5 else word(rng).capitalize()
    if roll < 0.75:
        return f"{word(rng)}-{rng.randrange(100)}"
    if roll < 0.8:
        return str(rng.randrange(10000))
    if roll < 0.85:
        return made_up_word(rng) + str(rng.randrange(10))
    return " ".join(word(rng) for _ in range(rng.choice((2, 2, 3))))


def _spoken(rng: Random, split: Split) -> str:
    """A phrase; in training at times with capitals, so that the capital form of every word is copied somewhere."""
    if split == "train" and rng.random() < 0.25:
        words = [word(rng) for _ in range(rng.choice((2, 2, 3)))]
        return " ".join(words).title() if rng.random() < 0.6 else " ".join(words).capitalize()
    return phrase(rng)


def exact_word(rng: Random, split: Split) -> Exchange:
    wanted = draw(split, "word", lambda: _spoken(rng, split))
    thoughts = think(
        f"The user wants exactly this reply: {wanted}",
        [f"The text to write is {wanted}", "No greeting, no quotes and no full stop are needed."],
        f"I reply with {wanted}",
    )
    return Exchange(ask(rng.choice(FORMS).format(w=wanted), wanted, thoughts))
