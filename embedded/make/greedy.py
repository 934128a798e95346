"""Greedy replies of the training form and how many of them are exactly the expected ones. Knows no optimiser.

Nothing is cached: every new token runs the whole batch again, at the shape training compiled. Enough for a few hundred prompts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from embedded.make.batch import Batch, of_rows
from embedded.make.data.encoding import Document, Encoder
from embedded.make.data.mixture import long_sample, sample
from embedded.make.model import Model

REPLY = 2
MARGIN = 8


@dataclass(slots=True)
class Prompt:
    """`ids` up to the reply, the `wanted` reply with its stop token, pictures of the prompt as in `Document`, and the reply `got`."""

    task: str
    ids: list[int]
    wanted: list[int]
    pictures: list[tuple[int, np.ndarray]]
    got: list[int]

    @property
    def is_right(self) -> bool:
        return self.got == self.wanted


def first_reply(document: Document, task: str) -> Prompt:
    """The prompt before the first reply of a conversation, and that reply."""
    reply = document.marks == REPLY
    begin = int(reply.argmax())
    end = begin + int((~reply[begin:]).argmax() if (~reply[begin:]).any() else len(reply) - begin)
    shown = [(place, frames) for place, frames in document.pictures if place < begin]
    return Prompt(task, document.ids[:begin].tolist(), document.ids[begin:end].tolist(), shown, [])


def prompts(encoder: Encoder, tasks: Iterable[str], count: int, length: int, seed: int, split: str = "heldout") -> list[Prompt]:
    """`count` prompts of each task that fit rows of `length` tokens with their replies; `long_needle` fills rows to the end."""
    rng, found = Random(seed), []
    for task in tasks:
        kept = 0
        while kept < count:
            drawn = long_sample(rng, split, length) if task == "long_needle" else sample(rng, split, task)  # pyright: ignore[reportArgumentType]
            prompt = first_reply(encoder.document(drawn), task)
            if len(prompt.ids) + len(prompt.wanted) + MARGIN <= length:
                found.append(prompt)
                kept += 1
    return found


def row_batch(part: list[Prompt], rows: int, length: int, device: str) -> Batch:
    """The prompts one a row, the rest padding; rows without a prompt are empty."""
    ids, marks = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.uint8)
    shown = [(row * length + place, frames[[0, -1]]) for row, prompt in enumerate(part) for place, frames in prompt.pictures]
    for row, prompt in enumerate(part):
        ids[row, : len(prompt.ids)] = prompt.ids
    frames = torch.from_numpy(np.stack([f for _, f in shown])).to(device) if shown else None
    places = torch.tensor([place for place, _ in shown], device=device) if shown else None
    return of_rows(torch.from_numpy(ids).to(device), torch.from_numpy(marks).to(device), frames, places)


def complete(model: Model, part: list[Prompt], rows: int, length: int, device: str, stops: frozenset[int], longest: int) -> None:
    """Fills `got` of at most `rows` prompts, until a stop token, `longest` tokens or the row's end."""
    batch = row_batch(part, rows, length, device)
    used = [len(prompt.ids) for prompt in part]
    live = set(range(len(part)))
    for _ in range(longest):
        if not live:
            return
        last = torch.tensor([row * length + used[row] - 1 for row in range(len(part))], device=device)
        best = model.logits(model.trunk(batch).hidden[last].detach()).argmax(-1).tolist()
        for row in sorted(live):
            part[row].got.append(best[row])
            batch.ids[row * length + used[row]] = best[row]
            used[row] += 1
            if best[row] in stops or used[row] >= length:
                live.discard(row)


def rates(done: list[Prompt]) -> dict[str, float]:
    """Share of exact replies per task."""
    tasks = dict.fromkeys(prompt.task for prompt in done)
    return {task: float(np.mean([prompt.is_right for prompt in done if prompt.task == task])) for task in tasks}


def run(
    model: Model, waiting: list[Prompt], rows: int, length: int, device: str, stops: frozenset[int], longest: int = 640
) -> dict[str, float]:
    """Completes all prompts and returns `rates`. Short replies run together, so that few rows wait for a long one."""
    waiting = sorted(waiting, key=lambda prompt: len(prompt.wanted))
    for at in range(0, len(waiting), rows):
        part = waiting[at : at + rows]
        complete(model, part, rows, length, device, stops, min(longest, max(len(p.wanted) for p in part) + MARGIN))
    return rates(waiting)
