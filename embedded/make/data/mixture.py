"""Which task comes how often, and how exchanges are joined into conversations with efforts and system prompts.

`sample` is the stream: seeded, endless, never an instance of the held-out split when asked for training. Knows no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from embedded.make.data.conversation import EFFORTS, Effort, Sample, ToolFrame, Turn, render
from embedded.make.data.exchange import Exchange, Task
from embedded.make.data.split import Split
from embedded.make.data.tasks import arithmetic, chat, count, edit, json_object, memory, needles, obey, pictures, records, tools

TASKS: dict[str, tuple[float, Task]] = {
    "exact_word": (22, obey.exact_word),
    "count": (6, count.count_up),
    "sum": (6, arithmetic.bare),
    "story": (2, arithmetic.story),
    "edit": (8, edit.edit),
    "greeting": (6, chat.greeting),
    "fact": (4, chat.fact),
    "recall": (2, chat.recall),
    "persona": (1, chat.persona),
    "json_object": (9, json_object.json_object),
    "json_pair": (3, json_object.small_pair),
    "json_array": (2, json_object.json_array),
    "records": (2, records.records),
    "explanation": (2.5, memory.explanation),
    "program": (3, memory.program),
    "tool_call": (14, tools.tool_call),
    "parallel_calls": (5, tools.parallel_calls),
    "no_call": (2, tools.no_call),
    "needle": (5, needles.short_needle),
    "one_shape": (12, pictures.one_shape),
    "two_shapes": (6, pictures.two_shapes),
    "how_many": (6, pictures.how_many),
    "clip": (3, pictures.clip),
}
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Be brief.",
    "You are a tiny test model.",
    "Answer as asked and add nothing.",
)
_TAG = re.compile(r"</?[a-z_]+>")
_NAMES = tuple(TASKS)
_WEIGHTS = [weight for weight, _ in TASKS.values()]
JOINED_SHARE, SYSTEM_SHARE, THINKING_SHARE = 0.3, 0.15, 0.25


def _effort(rng: Random) -> Effort | None:
    return rng.choice(EFFORTS) if rng.random() < THINKING_SHARE else None


def sample(rng: Random, split: Split, task: str | None = None) -> Sample:
    """One conversation: a single exchange, or at times two to four joined ones. `task` fixes the only exchange."""
    name = task or rng.choices(_NAMES, _WEIGHTS)[0]
    first = TASKS[name][1](rng, split)
    exchanges = [first]
    if task is None and not first.alone and rng.random() < JOINED_SHARE:
        exchanges += _followers(rng, split, bool(first.tools))
    return assemble(rng, exchanges, name)


def _followers(rng: Random, split: Split, has_tools: bool) -> list[Exchange]:
    found: list[Exchange] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        exchange = TASKS[rng.choices(_NAMES, _WEIGHTS)[0]][1](rng, split)
        if exchange.alone or (exchange.tools and has_tools):
            continue
        has_tools = has_tools or bool(exchange.tools)
        found.append(exchange)
    rng.shuffle(found)
    return found


def assemble(rng: Random, exchanges: list[Exchange], task: str) -> Sample:
    """Joins exchanges into one conversation; adds an effort and, unless there is one, at times a system prompt."""
    turns = [turn for exchange in exchanges for turn in exchange.turns]
    if turns[0].role != "system" and rng.random() < SYSTEM_SHARE:
        turns.insert(0, Turn("system", rng.choice(SYSTEM_PROMPTS)))
    declared = tuple(tool for exchange in exchanges for tool in exchange.tools)
    return Sample(tuple(turns), declared, _effort(rng), task)


def long_sample(rng: Random, split: Split, longest: int) -> Sample:
    """A needle conversation of up to `longest` tokens."""
    return assemble(rng, [needles.long_needle(rng, split, longest)], "long_needle")


def corpus(seed: int, frame: ToolFrame, samples: int = 12_000) -> Iterator[str]:
    """Plain texts the tokenizer is trained on: the text segments of `samples` training conversations without special tokens."""
    rng = Random(seed)
    bare = ToolFrame(frame.head, _TAG.sub(" ", frame.tail))
    for _ in range(samples):
        for segment in render(sample(rng, "train"), bare):
            if not segment.special:
                yield segment.text
