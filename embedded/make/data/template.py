"""Reads the checkpoint's chat template: the wording around the tools, and whole renderings for comparison. Knows no tokenizer."""

from __future__ import annotations

import json
from typing import Any

import jinja2
from embedded.make.data.conversation import Sample, ToolFrame, to_json

EFFORT_LINE = "<|system|>Reasoning Effort: Max"
_PROBE = {"name": "probe_of_the_frame", "description": "", "parameters": {}}


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    return environment


def tool_frame(template: str) -> ToolFrame:
    """Text of the tools block before and after its tool lines. Raises ValueError if the template prints the probe differently."""
    text = _environment().from_string(template).render(messages=[], tools=[{"type": "function", "function": _PROBE}])
    line = to_json(_PROBE)
    if text.count(line) != 1 or "<|system|>" not in text:
        raise ValueError(f"the template should print the tool line {line} once inside a system turn; it printed: {text[:400]}")
    head, tail = text.split(line)
    return ToolFrame(head.rsplit("<|system|>", 1)[1], tail.split("<|", 1)[0])


def to_messages(sample: Sample) -> list[dict[str, Any]]:
    """The conversation as chat-completions messages; media parts carry only their type, as the template needs no more."""
    messages: list[dict[str, Any]] = []
    for turn in sample.turns:
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        if turn.media:
            kinds = ["video" if media.is_clip else "image" for media in turn.media]
            message["content"] = [*({"type": kind} for kind in kinds), {"type": "text", "text": turn.content}]
        if turn.role == "assistant" and sample.effort and turn.thoughts:
            message["reasoning_content"] = getattr(turn.thoughts, sample.effort)
        if turn.calls:
            message["tool_calls"] = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in turn.calls]
        messages.append(message)
    return messages


def render_template(template: str, sample: Sample, add_generation_prompt: bool) -> str:
    """What the server makes of the conversation, placeholders of media unexpanded.

    The published template always writes an effort line and opens `<think>`; with thinking off the line goes and the block closes.
    """
    compiled = _environment().from_string(template)
    tools = [{"type": "function", "function": tool} for tool in sample.tools]
    text = compiled.render(
        messages=to_messages(sample), tools=tools, reasoning_effort=sample.effort, add_generation_prompt=add_generation_prompt
    )
    if sample.effort is not None:
        return text
    return text.replace(EFFORT_LINE, "", 1) + ("</think>" if add_generation_prompt else "")
