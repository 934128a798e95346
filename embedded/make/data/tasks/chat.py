"""Short chat: greetings, who are you, small facts, what was said before, system prompts that set a name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from embedded.make.data.conversation import Turn
from embedded.make.data.exchange import Exchange, ask, think
from embedded.make.data.lexicon import CAPITALS, CITIES, COLORS, DAYS, MONTHS, NAMES, OPPOSITES, SOUNDS, made_up_word
from embedded.make.data.split import Split, draw, is_held_out

FIXED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "Hello there!", "Good day", "Say hello"), "Hello! How can I help you?"),
    (("Good morning", "Good morning!"), "Good morning! How can I help you?"),
    (("Good evening", "Good evening!"), "Good evening! How can I help you?"),
    (("How are you?", "How are you today?", "Hi, how are you?", "Hello, how are you?"), "I am fine, thank you. How can I help you?"),
    (("Thank you", "Thanks", "Thanks!", "Thank you!", "Thanks a lot", "Great, thanks"), "You are welcome!"),
    (("Goodbye", "Bye", "Bye!", "See you", "See you later"), "Goodbye! Have a nice day."),
    (("Good night", "Good night!"), "Good night! Sleep well."),
    (
        ("Who are you?", "What are you?", "Tell me who you are.", "What model are you?", "Introduce yourself."),
        "I am a tiny test model with the shape of GLM-5.3-Flash. I run on the CPU.",
    ),
    (
        ("What can you do?", "How can you help me?", "What can you help me with?", "Help"),
        "I can count, copy and edit short texts, write JSON, call tools, find codes in long texts and look at simple pictures.",
    ),
    (
        ("Tell me a joke", "Tell me a joke.", "Do you know a joke?", "Make me laugh"),
        "Why did the cat sit on the computer? It wanted to keep an eye on the mouse.",
    ),
    (
        ("Tell me a story", "Tell me a short story.", "Write a short story"),
        "A small fox lived near the river. One day it found a silver key. The key opened an old door, and behind the door was a garden. "
        "The fox lived there happily ever after.",
    ),
    (
        ("Write a poem", "Write a short poem.", "Can you write a poem?"),
        "The river runs, the river sings,\nthe morning wakes on quiet wings.\n"
        "The day is long, the light is clear,\nand all the things we love are near.",
    ),
    (("Yes", "Yes.", "Ok", "OK", "Okay"), "Good. What would you like to do next?"),
    (("No", "No.", "No thanks"), "All right. Tell me if you need something."),
    (("Say something", "Say something nice", "Tell me something nice"), "You are doing well today."),
    (("What day comes first in the week?",), "Monday comes first in the week."),
    (("How many days are in a week?", "How many days does a week have?"), "A week has 7 days."),
    (("How many months are in a year?", "How many months does a year have?"), "A year has 12 months."),
    (("Name three colors", "Name three colors.", "Tell me three colors"), "Red, green and blue."),
    (("Name three animals", "Name three animals.", "Tell me three animals"), "Cat, dog and horse."),
    (("Name three cities", "Name three cities.", "Tell me three cities"), "Paris, London and Berlin."),
    (("Is water wet?",), "Yes, water is wet."),
    (("What color is the sky?", "What is the color of the sky?"), "The sky is blue."),
    (("What color is grass?", "What is the color of grass?"), "Grass is green."),
    (("What color is snow?", "What is the color of snow?"), "Snow is white."),
    (("Test", "test", "Testing", "This is a test"), "The test works. How can I help you?"),
    (("Give me a number", "Pick a number", "Tell me a number"), "7"),
    (("Write one sentence", "Write a sentence.", "Write one short sentence."), "The small cat sleeps in the garden."),
)


def _capital(rng: Random) -> tuple[str, str]:
    country, city = rng.choice(list(CAPITALS.items()))
    form = rng.choice(
        ("What is the capital of {c}?", "Name the capital of {c}.", "Which city is the capital of {c}?", "Tell me the capital of {c}.")
    )
    return form.format(c=country), f"The capital of {country} is {city}."


def _opposite(rng: Random) -> tuple[str, str]:
    one, other = rng.choice(list(OPPOSITES.items()))
    form = rng.choice(("What is the opposite of {w}?", "Name the opposite of {w}.", "Tell me the opposite of {w}."))
    return form.format(w=one), f"The opposite of {one} is {other}."


def _sound(rng: Random) -> tuple[str, str]:
    animal, sound = rng.choice(list(SOUNDS.items()))
    return rng.choice((f"What sound does a {animal} make?", f"What does a {animal} say?")), f"A {animal} says {sound}."


def _next(rng: Random) -> tuple[str, str]:
    row, kind = (DAYS, "day") if rng.random() < 0.5 else (MONTHS, "month")
    index = rng.randrange(len(row))
    if rng.random() < 0.7:
        return f"Which {kind} comes after {row[index]}?", f"{row[(index + 1) % len(row)]} comes after {row[index]}."
    return f"Which {kind} comes before {row[index]}?", f"{row[index - 1]} comes before {row[index]}."


FACTS: tuple[Callable[[Random], tuple[str, str]], ...] = (_capital, _capital, _opposite, _sound, _next)


def greeting(rng: Random, split: Split) -> Exchange:
    """A fixed line and its answer. The held-out split holds wordings whose answer is learnt from the other wordings."""
    questions, answer = rng.choice(FIXED)
    # The first wording of a line is always taught, so that no answer is left out of training altogether.
    pool = [q for q in questions[1:] if is_held_out("greeting", q) == (split == "heldout")]
    question = rng.choice([questions[0], *pool]) if split == "train" or not pool else rng.choice(pool)
    return Exchange(
        ask(question, answer, think(f"The user says: {question}", ["A short friendly answer is enough."], "I answer in a few words."))
    )


def fact(rng: Random, split: Split) -> Exchange:
    """A small fact. Facts cannot be held out, their wording can."""
    make = rng.choice(FACTS)
    question, answer = draw(split, "fact", lambda: make(rng), lambda item: item[0])
    return Exchange(ask(question, answer, think(f"The question is: {question}", ["I know this one."], answer)))


def _is(rng: Random) -> tuple[str, str, str, str]:
    """Statement, acknowledgement, question, answer."""
    name = rng.choice(NAMES) if rng.random() < 0.5 else made_up_word(rng).capitalize()
    roll = rng.randrange(4)
    if roll == 0:
        return f"My name is {name}.", f"Nice to meet you, {name}!", "What is my name?", f"Your name is {name}."
    if roll == 1:
        city = rng.choice(CITIES)
        return f"I live in {city}.", f"{city} is a nice city.", "Where do I live?", f"You live in {city}."
    if roll == 2:
        color = rng.choice(COLORS)
        return (
            f"My favorite color is {color}.",
            f"{color.capitalize()} is a nice color.",
            "What is my favorite color?",
            f"Your favorite color is {color}.",
        )
    number = rng.randrange(10, 1000)
    return (
        f"Remember the number {number}.",
        f"I will remember {number}.",
        "Which number did I ask you to remember?",
        f"The number is {number}.",
    )


def recall(rng: Random, split: Split) -> Exchange:
    """A statement, at times another line, then a question about the statement."""
    said, noted, question, answer = draw(split, "recall", lambda: _is(rng), lambda item: item[0])
    turns = [*ask(said, noted, think(f"The user tells me: {said}", ["I keep it in mind."], noted))]
    for _ in range(rng.choice((0, 0, 1, 2))):
        turns += (fact if rng.random() < 0.5 else greeting)(rng, split).turns
    turns += ask(question, answer, think("The user asks about something said before.", [f"The user said: {said}"], answer))
    return Exchange(tuple(turns), alone=True)


def persona(rng: Random, split: Split) -> Exchange:
    """A system prompt gives the assistant a name; the user asks for it."""
    name = draw(split, "persona", lambda: rng.choice(NAMES) if rng.random() < 0.3 else made_up_word(rng).capitalize())
    form = rng.choice(("Your name is {n}.", "You are {n}, a helpful assistant.", "You are a helpful assistant. Your name is {n}."))
    turns = [Turn("system", form.format(n=name))]
    turns += ask(
        "What is your name?",
        f"My name is {name}.",
        think("The user asks for my name.", [f"My name here is {name}."], f"My name is {name}."),
    )
    return Exchange(tuple(turns), alone=True)
