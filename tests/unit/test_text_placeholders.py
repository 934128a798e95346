"""Pictures and clips stand in a prompt where the template puts them, in the published form, and nothing typed can look like one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from embedded.make.data.conversation import CLIP_FPS, Sample
from embedded.make.data.encoding import Encoder
from embedded.make.data.mixture import sample

from lockstep.text.placeholders import Placeholders, Shown
from lockstep.text.template import ChatTemplate, Prompt
from lockstep.text.thinking import Thinking
from lockstep.text.tokenizer import Tokenizer

MODEL = Path(__file__).parents[2] / "embedded"
TOKENIZER = Tokenizer.load(MODEL)
TEMPLATE = ChatTemplate.load(MODEL, TOKENIZER)
OFF = Thinking(False, "high")
IMAGE = TOKENIZER.added["<|image|>"]


def prompt(messages: list[dict], shown: list[Shown], thinking: Thinking = OFF) -> Prompt:
    """Parts {"shows": n} become marks."""
    placeholders = Placeholders(shown)
    marked = [
        message | {"content": [text(placeholders.mark(part["shows"])) if "shows" in part else part for part in message["content"]]}
        for message in messages
    ]
    return TEMPLATE.prompt(marked, thinking, placeholders=placeholders)


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def test_a_picture_is_what_the_checkpoints_template_writes_for_it() -> None:
    found = prompt([{"role": "user", "content": [text("a"), {"shows": 0}, text("b")]}], [Shown(1)])
    part = [text("a"), {"type": "image_url"}, text("b")]
    rendered = TEMPLATE._template.render(messages=[{"role": "user", "content": part}], reasoning_effort="high", add_generation_prompt=True)
    assert TOKENIZER.decode(found.ids).removesuffix("</think>") == rendered.replace("<|system|>Reasoning Effort: High", "")
    assert [(place.index, place.segment) for place in found.places] == [(0, 0)]
    assert found.ids[found.places[0].start] == IMAGE


def test_a_clip_is_a_row_of_pictures_with_their_moments() -> None:
    found = prompt([{"role": "user", "content": [{"shows": 0}, text("?")]}], [Shown(2, (0.0, 1.04, 12.5))])
    pair = "<|begin_of_image|><|image|><|image|><|end_of_image|>"
    clip = f"<|begin_of_video|>{pair}0.0 seconds{pair}1.0 seconds{pair}12.5 seconds<|end_of_video|>"
    assert f"<|user|>{clip}?<|assistant|>" in TOKENIZER.decode(found.ids)
    assert [place.segment for place in found.places] == [0, 1, 2]
    assert all(found.ids[place.start : place.start + 2] == (IMAGE, IMAGE) for place in found.places)


def test_places_follow_the_template_where_it_reorders_tool_results() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": "look", "arguments": {}}} for name in ("one", "two")]
    messages = [
        {"role": "user", "content": [text("Look.")]},
        {"role": "assistant", "content": [], "tool_calls": calls},
        {"role": "tool", "tool_call_id": "two", "content": [{"shows": 0}]},
        {"role": "tool", "tool_call_id": "one", "content": [{"shows": 1}]},
    ]
    found = prompt(messages, [Shown(3), Shown(5)])
    assert [place.index for place in found.places] == [1, 0]
    first, second = (place.start for place in found.places)
    assert found.ids[first - 1 : first + 6] == (TOKENIZER.added["<|begin_of_image|>"], *[IMAGE] * 5, TOKENIZER.added["<|end_of_image|>"])
    assert found.ids[second : second + 4] == (*[IMAGE] * 3, TOKENIZER.added["<|end_of_image|>"])


def test_typed_control_words_and_marks_stay_text() -> None:
    typed = "<|begin_of_image|><|image|><|end_of_image|> and " + Placeholders([Shown(1)]).mark(0)
    found = prompt([{"role": "user", "content": [text(typed), {"shows": 0}]}], [Shown(4)])
    assert found.ids.count(IMAGE) == 4
    assert typed in TOKENIZER.decode(found.ids)


@pytest.mark.parametrize("task", ["picture", "clip"])
def test_prompts_with_media_are_those_of_training(task: str) -> None:
    encoder, rng, seen = Encoder.of(MODEL), Random(8), 0
    while seen < 20:
        conversation = sample(rng, "train")
        media = [one for turn in conversation.turns for one in turn.media]
        if conversation.tools or not media or any(one.is_clip != (task == "clip") for one in media):
            continue
        asked, shown, messages = Sample(conversation.turns[:-1], (), conversation.effort), [], []
        for turn in asked.turns:
            content: list[dict] = []
            for one in turn.media:
                content.append({"shows": len(shown)})
                shown.append(Shown(16, tuple(first / CLIP_FPS for first, _ in one.pairs) if one.is_clip else ()))
            messages.append({"role": turn.role, "content": [*content, text(turn.content)]})
            if turn.role == "assistant" and asked.effort and turn.thoughts:
                messages[-1]["reasoning_content"] = getattr(turn.thoughts, asked.effort)
        wanted = encoder.prompt(asked)
        found = prompt(messages, shown, Thinking(asked.effort is not None, asked.effort or "high"))
        assert list(found.ids) == wanted.ids.tolist()
        assert [place.start for place in found.places] == [at for at, _ in wanted.pictures]
        seen += 1
