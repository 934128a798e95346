"""A training conversation and its rendering in the published prompt layout, as text segments.

Knows the order of special tokens and where the loss lies; knows neither the tokenizer nor any task. The layout is the one of
`embedded/chat_template.jinja` (a test compares both); only the wording of the tools block is read from that file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["low", "high", "max"]
EFFORTS: tuple[Effort, ...] = ("low", "high", "max")
IMAGE_TOKENS = 16
FRAME_PIXELS = 112
CLIP_FPS = 2.0

GIVEN, REPLY = 1, 2


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call; values keep their JSON types."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """A still (one frame) or a clip (an even number of frames at `CLIP_FPS`): palette indices, uint8 [frames, 112, 112]."""

    frames: np.ndarray
    is_clip: bool = False

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Frame indices of each temporal patch; a still repeats its frame."""
        if not self.is_clip:
            return [(0, 0)]
        return [(i, i + 1) for i in range(0, len(self.frames), 2)]


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Reasoning of one assistant turn at each effort, growing in length."""

    low: str
    high: str
    max: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `thoughts` belongs to assistant turns and is used only when the conversation thinks."""

    role: Role
    content: str = ""
    thoughts: Thoughts | None = None
    calls: tuple[Call, ...] = ()
    media: tuple[Media, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """A whole conversation. `effort` None means thinking off; `task` is the name of its first task, for statistics."""

    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()
    effort: Effort | None = None
    task: str = ""

    def with_effort(self, effort: Effort | None) -> Sample:
        return replace(self, effort=effort)


@dataclass(slots=True)
class Segment:
    """`special` segments name exactly one special token. `mark` is GIVEN or REPLY. `media` sits on the first token of its run."""

    text: str
    special: bool
    mark: int
    media: tuple[Media, int] | None = field(default=None)


@dataclass(frozen=True, slots=True)
class ToolFrame:
    """Text of the tools block before the first and after the last tool line, as the template writes it."""

    head: str
    tail: str


def to_json(value: Any) -> str:
    """JSON as the template prints it: key order kept, characters kept, separators `, ` and `: `."""
    return json.dumps(value, ensure_ascii=False)


def render(sample: Sample, frame: ToolFrame) -> list[Segment]:
    """Segments of the conversation including the stop token the model must emit at its end.

    Source: published prompt layout (`docs/structures.md`, life of a request, step 2).
    """
    return list(_segments(sample, frame))


def render_prompt(sample: Sample, frame: ToolFrame) -> list[Segment]:
    """Segments of a conversation that waits for a reply: the turns, the generation prompt and, thinking off, the closed block."""
    opened = ["<|assistant|>", "<think>"] + (["</think>"] if sample.effort is None else [])
    return [*_segments(sample, frame), *(_special(token) for token in opened)]


def _special(text: str, mark: int = GIVEN) -> Segment:
    return Segment(text, True, mark)


def _segments(sample: Sample, frame: ToolFrame) -> Iterator[Segment]:
    yield from (_special("[gMASK]"), _special("<sop>"))
    if sample.effort is not None:
        yield _special("<|system|>")
        yield Segment(f"Reasoning Effort: {sample.effort.capitalize()}", False, GIVEN)
    if sample.tools:
        yield _special("<|system|>")
        yield Segment(frame.head + "\n".join(to_json(tool) for tool in sample.tools) + frame.tail, False, GIVEN)
    previous: Turn | None = None
    for turn in sample.turns:
        yield from _turn(turn, previous, sample.effort)
        previous = turn
    if previous is not None and previous.role == "assistant":
        yield _special(_stop(previous), REPLY)


def _stop(turn: Turn) -> str:
    return "<|observation|>" if turn.calls else "<|user|>"


def _turn(turn: Turn, previous: Turn | None, effort: Effort | None) -> Iterator[Segment]:
    mark = REPLY if previous is not None and previous.role == "assistant" else GIVEN
    if turn.role == "system":
        yield _special("<|system|>")
        yield Segment(turn.content, False, GIVEN)
    elif turn.role == "user":
        yield _special("<|user|>", mark)
        for media in turn.media:
            yield from _media(media)
        yield Segment(turn.content, False, GIVEN)
    elif turn.role == "tool":
        if previous is None or previous.role != "tool":
            yield _special("<|observation|>", mark)
        yield _special("<tool_response>")
        yield Segment(turn.content, False, GIVEN)
        yield _special("</tool_response>")
    else:
        yield from _assistant(turn, effort)


def _assistant(turn: Turn, effort: Effort | None) -> Iterator[Segment]:
    yield from (_special("<|assistant|>"), _special("<think>"))
    if effort is None:
        yield _special("</think>")
    else:
        if turn.thoughts is not None:
            yield Segment(getattr(turn.thoughts, effort), False, REPLY)
        yield _special("</think>", REPLY)
    if turn.content:
        yield Segment(turn.content.strip(), False, REPLY)
    for call in turn.calls:
        yield _special("<tool_call>", REPLY)
        yield Segment(call.name, False, REPLY)
        for key, value in call.arguments.items():
            yield _special("<arg_key>", REPLY)
            yield Segment(key, False, REPLY)
            yield from (_special("</arg_key>", REPLY), _special("<arg_value>", REPLY))
            yield Segment(value if isinstance(value, str) else to_json(value), False, REPLY)
            yield _special("</arg_value>", REPLY)
        yield _special("</tool_call>", REPLY)


def _media(media: Media) -> Iterator[Segment]:
    if media.is_clip:
        yield _special("<|begin_of_video|>")
    for index, (first, _) in enumerate(media.pairs):
        yield _special("<|begin_of_image|>")
        for token in range(IMAGE_TOKENS):
            yield Segment("<|image|>", True, GIVEN, (media, index) if token == 0 else None)
        yield _special("<|end_of_image|>")
        if media.is_clip:
            yield Segment(f"{first / CLIP_FPS:.1f} seconds", False, GIVEN)
    if media.is_clip:
        yield _special("<|end_of_video|>")
