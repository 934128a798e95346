"""Held-out questions for the quality suite and for quick evaluation: `python -m embedded.make.data.fixtures --out DIR`.

Writes the JSON files that `recipe` bundles. Every instance comes from the held-out split, asked in plain English, so that the big
model can be asked the same. Kinds of expectations are those of `verify.judge`.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from embedded.make.data.conversation import Media, Sample, Turn
from embedded.make.data.drawing import PAINTS, PALETTE, SHAPES
from embedded.make.data.lexicon import sentence
from embedded.make.data.mixture import sample
from embedded.make.data.split import is_held_out
from embedded.make.data.tasks import needles, obey, pictures, tools
from embedded.make.data.tasks.arithmetic import operands, result
from PIL import Image

SEED = 4100
PLACES = ("left", "right", "top", "bottom")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")


@dataclass(frozen=True, slots=True)
class Case:
    """`asked` ends with the user's turn; `expect` is an expectation of the judge."""

    asked: Sample
    expect: dict[str, Any]
    max_tokens: int


def data_url(media: Media) -> str:
    """PNG of a still's only frame, pixel for pixel, as a data URL."""
    image = Image.fromarray(media.frames[0], mode="P")
    image.putpalette([channel for color in PALETTE.values() for channel in color])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def to_request(case: Case) -> dict[str, Any]:
    """Messages, tools and max_tokens in the chat-completions shape."""
    messages: list[dict[str, Any]] = []
    for turn in case.asked.turns:
        parts = [{"type": "image_url", "image_url": {"url": data_url(media)}} for media in turn.media]
        messages.append({"role": turn.role, "content": [*parts, {"type": "text", "text": turn.content}] if parts else turn.content})
    request: dict[str, Any] = {"messages": messages, "max_tokens": case.max_tokens}
    if case.asked.tools:
        request["tools"] = [{"type": "function", "function": tool} for tool in case.asked.tools]
    return request


def _user(text: str, media: tuple[Media, ...] = (), declared: tuple[dict[str, Any], ...] = ()) -> Sample:
    return Sample((Turn("user", text, media=media),), declared)


def _question(conversation: Sample) -> Sample:
    """The conversation up to its first user turn, thinking off, without a system prompt."""
    first = next(turn for turn in conversation.turns if turn.role == "user")
    return Sample((first,), conversation.tools)


def _held_out(task: str, seed: int) -> Iterator[Sample]:
    rng = Random(seed)
    while True:
        yield sample(rng, "heldout", task)


def exact_word() -> list[Case]:
    found: dict[str, Case] = {}
    rng = Random(SEED + 1)
    while len(found) < 20:
        wanted = obey.phrase(rng)
        if is_held_out("word", wanted):
            asked = obey.FORMS[len(found) % 10].format(w=wanted)
            found.setdefault(wanted, Case(_user(asked), {"kind": "exact", "value": wanted}, 64))
    return list(found.values())


def counting() -> list[Case]:
    """18 ranges of 5 to 60 numbers and two of 60 to 120, all different."""
    found: dict[tuple[int, int], Case] = {}
    forms = ("Count from {a} to {b}, numbers only.", "Count upward from {a} to {b}. Numbers only.")
    for conversation in _held_out("count", SEED + 2):
        answer = conversation.turns[-1].content.replace(",", " ").split()
        first, last = int(answer[0]), int(answer[-1])
        low, high = (5, 60) if len(found) < 18 else (60, 120)
        if low <= last - first < high:
            question = forms[len(found) % 2].format(a=first, b=last)
            found.setdefault((first, last), Case(_user(question), {"kind": "integers", "first": first, "last": last}, 1200))
        if len(found) == 20:
            return list(found.values())
    raise AssertionError("the held-out stream is endless")


def tool_calls() -> list[Case]:
    """30 requests for one call, 10 for two or three calls. Lists inside `with a, b` requests are ambiguous and left out."""
    found: list[Case] = []
    for task, number in (("tool_call", 30), ("parallel_calls", 10)):
        for conversation in _held_out(task, SEED + 3):
            if number == 0:
                break
            asked = _question(conversation)
            calls = next(turn.calls for turn in conversation.turns if turn.calls)
            if any(
                isinstance(value, list) and f"with the {key}" not in asked.turns[0].content
                for c in calls
                for key, value in c.arguments.items()
            ):
                continue
            expect = {"kind": "calls", "calls": [{"name": call.name, "arguments": call.arguments} for call in calls]}
            found.append(Case(asked, expect, 400))
            number -= 1
    return found


def json_instruction() -> list[Case]:
    found: list[Case] = []
    for conversation in _held_out("json_object", SEED + 4):
        asked = _question(conversation)
        text = asked.turns[0].content.split("\n\n[")[0]
        if not any(mark in text for mark in ("[run", "(stream", "Request ", " #")) and "Make JSON from this" not in text:
            expect = {"kind": "json", "value": json.loads(conversation.turns[-1].content)}
            found.append(Case(replace(asked, turns=(Turn("user", text),)), expect, 400))
        if len(found) == 20:
            return found
    raise AssertionError("the held-out stream is endless")


def _pictured(rng: Random, kind: str) -> Case:
    """One picture question; `kind` is colour, shape, place or count."""
    if kind == "count":
        shapes, _ = pictures.counted(rng, "heldout")
        media = Media(pictures.paint(shapes, "white")[None])
        right = len(shapes)
        words = [str(right), NUMBERS[right]]
        wrong = [text for n in range(7) if n != right for text in (str(n), NUMBERS[n])]
        return Case(
            _user("How many shapes are in the picture? Answer with a number.", (media,)),
            {"kind": "word", "words": words, "wrong": wrong},
            64,
        )
    shape, place, _ = pictures.single(rng, "heldout")
    while kind == "place" and place == "center":
        shape, place, _ = pictures.single(rng, "heldout")
    media = Media(pictures.paint([shape], "white")[None])
    question, right, options = {
        "color": (f"What color is the {shape.kind}? Answer with one word.", shape.color, PAINTS),
        "shape": ("What shape is in the picture? Answer with one word.", shape.kind, SHAPES),
        "place": (f"Where is the {shape.kind}: left, right, top or bottom? Answer with one word.", place, PLACES),
    }[kind]
    wrong = [option for option in options if option != right]
    return Case(_user(question, (media,)), {"kind": "word", "words": [right], "wrong": wrong}, 64)


def shapes() -> list[Case]:
    rng = Random(SEED + 5)
    return [_pictured(rng, kind) for kind in ("color", "shape", "place", "count") for _ in range(6)]


def images() -> list[Case]:
    """Three pictures to describe: colour and shape must both be named."""
    rng = Random(SEED + 6)
    found: list[Case] = []
    for _ in range(3):
        shape, _, _ = pictures.single(rng, "heldout")
        media = Media(pictures.paint([shape], "white")[None])
        found.append(Case(_user("What is in the picture?", (media,)), {"kind": "contains", "texts": [shape.color, shape.kind]}, 200))
    return found


def efforts() -> list[Case]:
    """Sums whose answer must stand in the reply at every effort; `expect` allows no other number than the operands."""
    rng = Random(SEED + 7)
    found: list[Case] = []
    while len(found) < 4:
        a, op, b = operands(rng)
        if op != "*" and min(a, b) >= 10 and is_held_out("sum", f"{a}{op}{b}"):
            question = f"What is {a} {op} {b}?"
            found.append(Case(_user(question), {"kind": "word", "words": [str(result(a, op, b))]}, 2000))
    return found


END_OF_TURN = (
    "Hello", "Hi there", "Good morning!", "How are you?", "Thank you", "Goodbye", "Who are you?", "What can you do?", "Tell me a joke",
    "Yes", "No", "Ok", "Say yes.", "Say no.", "Say hello", "Test", "Name three colors", "Name three animals", "Name three cities",
    "What is the capital of France?", "Name the capital of Japan.", "Which city is the capital of Italy?", "What is the capital of Peru?",
    "What is the opposite of hot?", "Name the opposite of big.", "What is the opposite of day?", "What does a cat say?",
    "What sound does a cow make?", "Which day comes after Monday?", "Which day comes before Friday?", "Which month comes after March?",
    "What is 2 + 2?", "What is 7 + 8?", "What is 9 - 4?", "What is 3 * 4?", "How much is 20 + 5?", "What color is the sky?",
    "What color is grass?", "Is water wet?", "How many days are in a week?", "How many months are in a year?", "Reply with exactly: ready",
    "Reply with exactly one word: banana", "Count from 1 to 5.", "Write one short sentence.", "Give me a number", "Say something nice",
    "Good night!",
)  # fmt: skip


def end_of_turn() -> list[Case]:
    return [Case(_user(text), {"kind": "stop"}, 1024) for text in END_OF_TURN]


def bursts() -> list[Case]:
    """90 requests for one tool, sent three at a time."""
    rng = Random(SEED + 8)
    declared = tools.lookup(rng, "heldout").tool
    found: list[Case] = []
    for _ in range(90):
        offer = tools.lookup(rng, "heldout")
        found.append(Case(_user(offer.request, declared=(declared,)), {"kind": "any_call", "name": "lookup", "argument": "topic"}, 1024))
    return found


SETS: dict[str, Callable[[], list[Case]]] = {
    "exact_word": exact_word,
    "counting": counting,
    "tool_calls": tool_calls,
    "json_instruction": json_instruction,
    "efforts": efforts,
    "end_of_turn": end_of_turn,
    "bursts": bursts,
    "images": images,
    "shapes": shapes,
}


def needle_parts() -> dict[str, Any]:
    """What the suite builds haystacks of any length from: sentences, named codes and the two lines around them."""
    rng = Random(SEED + 9)
    lines = list(dict.fromkeys(sentence(rng) for _ in range(420)))
    codes = list(needles.pairs(rng, "heldout", 24).items())
    return {"head": needles.HEADS[1], "needle": needles.NEEDLE, "question": needles.ALL[0], "codes": codes, "sentences": lines}


def needle_case(tokens: int, seed: int = 0) -> Case:
    """The suite's question at about `tokens` tokens of the embedded tokenizer: three codes at 1/6, 1/2 and 5/6, all asked for."""
    rng = Random(SEED + 10 + seed)
    codes = list(needles.pairs(rng, "heldout", 3).items())
    lines = [needles.NEEDLE.format(n=name, c=code) for name, code in codes]
    text = needles.haystack(rng, tokens // needles.TOKENS_PER_SENTENCE, lines, [1 / 6, 1 / 2, 5 / 6])
    names = [name for name, _ in codes]
    question = needles.ALL[0].format(n=", ".join(names[:-1]) + " and " + names[-1])
    return Case(_user(f"{needles.HEADS[1]}\n\n{text}\n\n{question}"), {"kind": "contains", "texts": [str(code) for _, code in codes]}, 300)


def write(out: Path) -> None:
    """Writes one file a set and `needles.json`; the same generator gives the same bytes."""
    out.mkdir(parents=True, exist_ok=True)
    for name, make in SETS.items():
        cases = [{"id": f"{name}-{number:02d}", **to_request(case), "expect": case.expect} for number, case in enumerate(make(), 1)]
        lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
        (out / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    (out / "needles.json").write_text(json.dumps(needle_parts(), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="embedded.make.data.fixtures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("scripts/verify/fixtures"))
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
