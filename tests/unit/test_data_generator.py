"""The data generator: held-out instances stay out, the rendering is the template's, packing loses nothing."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from random import Random

import numpy as np
import pytest
from embedded.make.data import GIVEN, REPLY, Sample, Turn, corpus, is_held_out, render, sample
from embedded.make.data.conversation import Call, Effort, Media
from embedded.make.data.encoding import Document, Encoder
from embedded.make.data.mixture import TASKS, long_sample
from embedded.make.data.packing import START, Packer
from embedded.make.data.shards import Plan, read, write
from embedded.make.data.split import draw
from embedded.make.data.template import render_template, to_messages, tool_frame
from embedded.make.tokenizer import write_text_files

from checkpoints.sizes import Sizes
from lockstep.text.template import ChatTemplate
from lockstep.text.thinking import Thinking
from lockstep.text.tokenizer import Tokenizer

TEMPLATE = files("checkpoints").joinpath("chat_template.jinja").read_text(encoding="utf-8")
FRAME = tool_frame(TEMPLATE)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_text_files(folder, Sizes())
    return folder


def rendered(conversation: Sample) -> str:
    """Our rendering as text, media placeholders folded to one token as the template writes them."""
    text = "".join(segment.text for segment in render(conversation, FRAME))
    still = "<|begin_of_image|><|image|><|end_of_image|>"
    text = text.replace("<|image|>" * 16, "<|image|>")
    return re.sub(rf"<\|begin_of_video\|>(?:{re.escape(still)}\d+\.\d seconds)+", "<|begin_of_video|><|video|>", text)


@pytest.mark.parametrize("task", TASKS)
def test_a_rendered_conversation_equals_the_template_plus_its_stop_token(task: str) -> None:
    rng = Random(task)
    for _ in range(25):
        conversation = sample(rng, "train", task)
        stop = "<|observation|>" if conversation.turns[-1].calls else "<|user|>"
        assert rendered(conversation) == render_template(TEMPLATE, conversation, add_generation_prompt=False) + stop


def test_joined_conversations_equal_the_template_token_for_token(checkpoint: Path) -> None:
    encoder = Encoder.of(checkpoint)
    rng = Random(5)
    for _ in range(150):
        conversation = sample(rng, "train")
        if any(turn.media for turn in conversation.turns):
            continue
        served = encoder.tokenizer.encode(
            render_template(TEMPLATE, conversation, add_generation_prompt=False), add_special_tokens=False
        ).ids
        assert encoder.document(conversation).ids[:-1].tolist() == served


def test_prompts_of_training_are_the_prompts_the_engine_serves(checkpoint: Path) -> None:
    encoder, served = Encoder.of(checkpoint), ChatTemplate.load(checkpoint, Tokenizer.load(checkpoint))
    rng = Random(6)
    for _ in range(100):
        conversation = sample(rng, "train")
        if conversation.tools or any(turn.media for turn in conversation.turns):
            continue
        asked = Sample(conversation.turns[:-1], (), conversation.effort)
        thinking = Thinking(conversation.effort is not None, conversation.effort or "high")
        assert encoder.prompt(asked).ids.tolist() == list(served.prompt(to_messages(asked), thinking).ids)


@pytest.mark.parametrize("effort", [None, "low", "high", "max"])
def test_the_loss_covers_exactly_what_the_model_writes_after_the_generation_prompt(effort: Effort | None) -> None:
    conversation = sample(Random(3), "train", "exact_word").with_effort(effort)
    prompt = render_template(TEMPLATE, Sample(conversation.turns[:-1], (), effort), add_generation_prompt=True)
    segments = render(conversation, FRAME)
    assert "".join(s.text for s in segments if s.mark == GIVEN) == prompt
    reply = "".join(s.text for s in segments if s.mark == REPLY)
    assert reply.endswith(conversation.turns[-1].content + "<|user|>")
    assert ("</think>" in reply) == (effort is not None)


def test_a_call_turn_ends_with_the_observation_token_and_the_next_role_is_learnt() -> None:
    turns = (
        Turn("user", "Add."),
        Turn("assistant", "", None, (Call("add", {"a": 1, "b": "2"}),)),
        Turn("tool", "3"),
        Turn("assistant", "3"),
    )
    segments = render(Sample(turns), FRAME)
    marked = "".join(s.text for s in segments if s.mark == REPLY)
    call = "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>2</arg_value></tool_call>"
    assert marked == f"{call}<|observation|>3<|user|>"


def test_the_same_seed_gives_the_same_conversations() -> None:
    first, second, other = (["".join(s.text for s in render(sample(Random(seed), "train"), FRAME)) for _ in range(5)] for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_training_conversations_hold_no_instance_of_the_held_out_split() -> None:
    rng = Random(11)
    for _ in range(400):
        answer = sample(rng, "train", "exact_word").turns[-1].content
        assert not is_held_out("word", answer)
        counted = [int(number) for number in re.findall(r"\d+", sample(rng, "train", "count").turns[-1].content)]
        assert counted == [1, *range(2, 201)] or not is_held_out("count", f"{counted[0]}-{counted[-1]}")
        assert not is_held_out("json", sample(rng, "train", "json_object").turns[-1].content)
        for call in (call for turn in sample(rng, "train", "tool_call").turns for call in turn.calls):
            assert call.name in ("get_weather", "lookup", "add", "get_time") or not is_held_out("tool", call.name)


def test_held_out_tool_requests_name_tools_that_training_never_shows() -> None:
    rng = Random(12)
    for _ in range(100):
        conversation = sample(rng, "heldout", "tool_call")
        assert all(is_held_out("tool", tool["name"]) for tool in conversation.tools)


def test_a_kind_without_held_out_instances_is_reported() -> None:
    with pytest.raises(RuntimeError, match="widen its generator"):
        draw("heldout", "nothing", lambda: "always the same")


@pytest.mark.parametrize("task", ["exact_word", "sum", "json_object", "tool_call", "needle", "one_shape"])
def test_reasoning_grows_with_the_effort(task: str) -> None:
    rng = Random(7)
    for _ in range(50):
        thoughts = sample(rng, "train", task).turns[-1].thoughts
        assert thoughts is not None
        assert len(thoughts.low) < len(thoughts.high) < len(thoughts.max)


def test_every_assistant_turn_of_a_thinking_conversation_has_thoughts() -> None:
    rng = Random(8)
    for _ in range(500):
        conversation = sample(rng, "train")
        assert all(turn.thoughts is not None for turn in conversation.turns if turn.role == "assistant")


def test_called_arguments_have_the_declared_types() -> None:
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list}
    rng = Random(9)
    for _ in range(300):
        conversation = sample(rng, "train", "parallel_calls")
        tools = {tool["name"]: tool["parameters"] for tool in conversation.tools}
        for call in (call for turn in conversation.turns for call in turn.calls):
            schema = tools[call.name]
            assert set(schema.get("required", [])) <= set(call.arguments)
            for key, value in call.arguments.items():
                assert isinstance(value, kinds[schema["properties"][key]["type"]])
                assert value in schema["properties"][key].get("enum", [value])


def test_a_long_needle_conversation_holds_each_code_it_asks_for_once() -> None:
    conversation = long_sample(Random(4), "train", 4096)
    prompt = next(turn.content for turn in conversation.turns if turn.role == "user")
    codes = re.findall(r"\d{5}", " ".join(turn.content for turn in conversation.turns if turn.role == "assistant"))
    assert codes
    assert all(prompt.count(code) == 1 for code in codes)


def test_the_corpus_holds_no_special_token_and_is_seeded() -> None:
    texts = list(corpus(1, FRAME, samples=50))
    assert texts == list(corpus(1, FRAME, samples=50))
    assert not any("<|" in text or "<tool_call>" in text for text in texts)


def test_clips_pair_their_frames_and_stills_repeat_theirs() -> None:
    frames = np.zeros((4, 112, 112), np.uint8)
    assert Media(frames, is_clip=True).pairs == [(0, 1), (2, 3)]
    assert Media(frames[:1]).pairs == [(0, 0)]


def test_packing_keeps_every_document_whole_and_aligned() -> None:
    rng = np.random.default_rng(0)
    packer = Packer(length=256, align=64, pad_id=9)
    documents = [
        Document(np.full(n, i + 10, np.uint16), np.full(n, 2, np.uint8), [(0, np.zeros(1))])
        for i, n in enumerate(rng.integers(3, 250, 200))
    ]
    rows = [row for document in documents for row in packer.add(document)] + packer.flush()
    found = {}
    for row in rows:
        starts = np.flatnonzero(row.marks & START)
        assert (starts % 64 == 0).all()
        assert [place for place, _ in row.pictures] == starts.tolist()
        for start in starts:
            value = int(row.ids[start])
            found[value] = int((row.ids == value).sum())
    assert found == {i + 10: len(document.ids) for i, document in enumerate(documents)}


def test_a_document_longer_than_a_row_is_counted_and_dropped() -> None:
    packer = Packer(length=64, align=64, pad_id=0)
    assert packer.add(Document(np.zeros(65, np.uint16), np.zeros(65, np.uint8), [])) == []
    assert packer.dropped == 1


def test_written_shards_read_back_with_pictures_at_their_placeholders(checkpoint: Path, tmp_path: Path) -> None:
    report = write(Plan(str(checkpoint), str(tmp_path), tokens=100_000, workers=1, seed=3, long_length=2048))
    bucket, image = read(tmp_path, "short"), Sizes().token("<|image|>")
    assert bucket.ids.shape[1] == 1024
    assert read(tmp_path, "long").ids.shape[1] == 2048
    assert len(bucket.places) > 20
    for row, position, first, second in bucket.places:
        assert (bucket.ids[row, position : position + 16] == image).all()
        assert 0 <= first <= second < len(bucket.frames)
    assert (bucket.ids == image).sum() == 16 * len(bucket.places)
    assert json.loads((tmp_path / "shards.json").read_text())["samples"] == report["samples"]


def test_reading_an_empty_folder_says_how_to_write_shards(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"embedded\.make\.data"):
        read(tmp_path, "short")
