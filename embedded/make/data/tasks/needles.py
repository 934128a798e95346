"""Secret codes hidden in filler, asked for at the end: one of several, or all of them."""

from __future__ import annotations

from random import Random

from embedded.make.data.conversation import Turn
from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import ANIMALS, CITIES, OBJECTS, made_up_word, sentence
from embedded.make.data.split import Split, draw

HEADS = (
    "Read this text.",
    "Read the following text and remember the secret codes.",
    "Here is a long text with secret codes in it.",
    "Read this text carefully.",
)
NEEDLE = "The secret code of {n} is {c}."
ONE = ("What is the secret code of {n}?", "Tell me the secret code of {n}.", "Which secret code does {n} have?")
ALL = ("What are the secret codes of {n}?", "Tell me the secret codes of {n}.", "List the secret codes of {n}.")
TOKENS_PER_SENTENCE = 9


def _pair(rng: Random) -> tuple[str, int]:
    roll = rng.random()
    name = (
        rng.choice(ANIMALS)
        if roll < 0.3
        else rng.choice(OBJECTS)
        if roll < 0.5
        else rng.choice(CITIES)
        if roll < 0.6
        else made_up_word(rng)
    )
    return name.capitalize(), rng.randrange(10000, 100000)


def pairs(rng: Random, split: Split, number: int) -> dict[str, int]:
    """Names and five-digit codes, all names different."""
    found: dict[str, int] = {}
    while len(found) < number:
        name, code = draw(split, "needle", lambda: _pair(rng), str)
        found.setdefault(name, code)
    return found


def haystack(rng: Random, sentences: int, needles: list[str], depths: list[float] | None = None) -> str:
    """`sentences` filler sentences with the needles at the given depths (fractions), or anywhere; paragraphs of about eight sentences."""
    lines = [sentence(rng) for _ in range(sentences)]
    places = [int(depth * sentences) for depth in depths] if depths else sorted(rng.randrange(sentences + 1) for _ in needles)
    for place, needle in sorted(zip(places, needles, strict=True), reverse=True):
        lines.insert(place, needle)
    paragraphs = [" ".join(lines[i : i + 8]) for i in range(0, len(lines), 8)]
    return "\n\n".join(paragraphs)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def question_and_answer(rng: Random, wanted: list[tuple[str, int]]) -> tuple[str, str]:
    names = [name for name, _ in wanted]
    form = rng.choice(ONE if len(wanted) == 1 else ALL)
    return form.format(n=_listed(names)), "\n".join(f"The secret code of {name} is {code}." for name, code in wanted)


def needle(rng: Random, split: Split, tokens: int) -> Exchange:
    """A prompt of about `tokens` tokens with one to four needles; asks for one of them or for all, at times in two turns."""
    codes = list(pairs(rng, split, rng.choice((1, 2, 3, 3, 4))).items())
    text = haystack(rng, max(2, tokens // TOKENS_PER_SENTENCE), [NEEDLE.format(n=n, c=c) for n, c in codes])
    rng.shuffle(codes)
    wanted = codes if rng.random() < 0.5 else codes[:1]
    question, answer = question_and_answer(rng, wanted)
    thoughts = think("The user asks for secret codes of the text.", [f"The text says: {answer}"], answer)
    turns: list[Turn] = [*ask(f"{rng.choice(HEADS)}\n\n{text}\n\n{question}", answer, thoughts)]
    for name, code in codes[len(wanted) :]:
        more, said = question_and_answer(rng, [(name, code)])
        turns += ask(more, said, think("The user asks for another code.", [f"The text says: {said}"], said))
    return Exchange(tuple(turns), alone=True)


def short_needle(rng: Random, split: Split) -> Exchange:
    """A needle prompt of 60 to 700 tokens."""
    return needle(rng, split, rng.randrange(60, 600))


def long_needle(rng: Random, split: Split, longest: int) -> Exchange:
    """A needle prompt of 700 tokens up to nearly `longest`, long ones as likely as short ones by tokens."""
    return needle(rng, split, int(rng.uniform(700, longest * 0.85)))
