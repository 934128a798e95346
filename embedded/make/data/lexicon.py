"""Words, names, places and small facts all tasks share. Kept narrow so that a vocabulary of 2,200 pieces covers it."""

from __future__ import annotations

import random

NAMES = """Ada Ben Carla David Elena Felix Grace Hugo Iris Jonas Kira Leo Maria Nina Omar Paula Rosa Sam Tina Victor Zoe
Anna Lucas Emma Noah Olga Peter Laura""".split()  # noqa: SIM905
CITIES = """Paris London Berlin Rome Madrid Vienna Oslo Tokyo Cairo Lima Delhi Boston Chicago Dublin Athens Prague
Zurich Lisbon Warsaw Helsinki""".split()  # noqa: SIM905
ANIMALS = """cat dog horse cow sheep fox bear wolf lion tiger rabbit duck eagle owl frog whale otter falcon lynx raven
heron badger""".split()  # noqa: SIM905
OBJECTS = """apple book chair table lamp door window river bridge garden house tower stone cloud letter basket bottle
candle mirror hammer ladder wagon kettle blanket clock train boat ticket pencil paper key box ring map""".split()  # noqa: SIM905
COLORS = "red green blue yellow purple orange black white gray brown pink silver".split()  # noqa: SIM905
ADJECTIVES = """small large old young quiet bright dark heavy light warm cold clean dry soft tall short slow quick
gentle plain""".split()  # noqa: SIM905
VERBS = "walks runs looks waits sleeps sings moves turns stands falls rests returns".split()  # noqa: SIM905
ADVERBS = "slowly quickly quietly gently often never today again early late".split()  # noqa: SIM905
PLACES = [
    "near the river",
    "behind the house",
    "under the bridge",
    "in the garden",
    "by the window",
    "on the hill",
    "at the market",
    "along the road",
    "across the field",
    "inside the tower",
]
PEOPLE = "farmer teacher sailor baker doctor miller painter driver singer writer".split()  # noqa: SIM905
MATERIALS = "wood iron glass paper wool clay".split()  # noqa: SIM905

CAPITALS = {
    "France": "Paris", "England": "London", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Austria": "Vienna", "Norway": "Oslo",
    "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima", "India": "Delhi", "Ireland": "Dublin", "Greece": "Athens", "Portugal": "Lisbon",
    "Poland": "Warsaw", "Finland": "Helsinki", "Sweden": "Stockholm", "Denmark": "Copenhagen", "Canada": "Ottawa", "China": "Beijing",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "old": "young", "fast": "slow", "light": "dark", "wet": "dry", "high": "low", "open": "closed",
    "full": "empty", "hard": "soft", "early": "late", "left": "right", "up": "down", "long": "short", "happy": "sad", "rich": "poor",
    "day": "night", "yes": "no", "in": "out", "black": "white",
}  # fmt: skip
SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo", "sheep": "baa", "duck": "quack", "lion": "roar", "frog": "ribbit", "owl": "hoot"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()  # noqa: SIM905
MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905
_OTHERS = """ready yes no ok done hello stop go open closed start finish true false left right up down north south east west one two three
four five six seven eight nine ten alpha beta gamma delta omega morning evening winter summer spring autumn water fire earth
wind music dance orbit signal engine planet island forest desert ocean valley mountain harbor castle lantern copper marble
velvet thunder meadow pepper ginger banana cherry lemon melon peach grape olive tomato potato onion carrot bread butter
cheese sugar honey coffee tea milk juice""".split()  # noqa: SIM905
PLAIN_WORDS = (*ANIMALS, *OBJECTS, *COLORS, *ADJECTIVES, *_OTHERS)

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"


def made_up_word(rng: random.Random) -> str:
    """A word of two or three open syllables with an optional closing consonant, such as `zorivak`."""
    syllables = "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3))))
    return syllables + (rng.choice("nrskl") if rng.random() < 0.5 else "")


def word(rng: random.Random) -> str:
    """A plain or a made-up word, half and half."""
    return rng.choice(PLAIN_WORDS) if rng.random() < 0.5 else made_up_word(rng)


def sentence(rng: random.Random) -> str:
    """A short English sentence from a fixed grammar, first letter upper case, full stop at the end."""
    pick = rng.choice
    form = rng.randrange(6)
    if form == 0:
        return f"The {pick(ADJECTIVES)} {pick(ANIMALS)} {pick(VERBS)} {pick(PLACES)}."
    if form == 1:
        return f"The {pick(PEOPLE)} {pick(VERBS)} {pick(ADVERBS)} {pick(PLACES)}."
    if form == 2:
        return f"A {pick(COLORS)} {pick(OBJECTS)} stands {pick(PLACES)}."
    if form == 3:
        return f"{pick(NAMES)} has a {pick(ADJECTIVES)} {pick(OBJECTS)} made of {pick(MATERIALS)}."
    if form == 4:
        return f"In {pick(CITIES)} the {pick(PEOPLE)} {pick(VERBS)} {pick(ADVERBS)}."
    return f"{pick(NAMES)} {pick(VERBS)} {pick(PLACES)} with the {pick(ADJECTIVES)} {pick(ANIMALS)}."


def tail(rng: random.Random) -> str:
    """Mostly nothing; at times the short unique mark that load generators add so that no two prompts are equal."""
    if rng.random() < 0.85:
        return ""
    tag = "".join(rng.choice("abcdefghkmnpqrstvwxyz0123456789") for _ in range(rng.choice((4, 6, 8))))
    return rng.choice(
        (f" [run {tag}]", f" (stream {rng.randrange(1, 33)})", f" Request {tag}.", f" #{rng.randrange(1, 1000)}", f"\n\n[{tag}]")
    )
