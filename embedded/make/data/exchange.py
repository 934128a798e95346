"""What one task returns: the turns of one question and its answer, and how reasoning of three lengths is written for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from embedded.make.data.conversation import Media, Thoughts, Turn
from embedded.make.data.split import Split


@dataclass(frozen=True, slots=True)
class Exchange:
    """`turns` starts with a user turn and ends with an assistant turn. `alone` exchanges are never joined with others."""

    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()
    alone: bool = False


Task = Callable[[Random, Split], Exchange]


def think(restate: str, steps: Sequence[str], conclusion: str, check: str = "") -> Thoughts:
    """Reasoning at three lengths: the conclusion; restatement, steps and conclusion; the same numbered, then checked and walked again."""
    numbered = [f"Step {number}: {step}" for number, step in enumerate(steps, 1)]
    return Thoughts(
        low=conclusion,
        high=" ".join([restate, *steps, conclusion]),
        max="\n".join(
            [
                restate,
                "Let me go through it step by step.",
                *numbered,
                f"So far: {conclusion}",
                "Let me check this once more.",
                *steps,
                check or "Nothing is missing and nothing is added.",
                f"The check agrees. {conclusion}",
            ]
        ),
    )


def ask(question: str, answer: str, thoughts: Thoughts | None = None, media: tuple[Media, ...] = ()) -> tuple[Turn, Turn]:
    """A user turn and its answer."""
    return Turn("user", question, media=media), Turn("assistant", answer, thoughts)
