"""The bundled questions of the quality suite are what the generator writes, all held out, and judged right for right answers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from embedded.make.data import sample
from embedded.make.data.conversation import Sample
from embedded.make.data.encoding import Encoder
from embedded.make.data.fixtures import SETS, Case, needle_case, write
from embedded.make.data.replies import parse_reply, verdict
from embedded.make.tokenizer import write_text_files

from checkpoints.sizes import Sizes

BUNDLED = Path(__file__).parents[2] / "scripts" / "verify" / "fixtures"
COUNTS = {
    "exact_word": 20,
    "counting": 20,
    "tool_calls": 40,
    "json_instruction": 20,
    "end_of_turn": 48,
    "bursts": 90,
    "images": 3,
    "shapes": 24,
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_text_files(folder, Sizes())
    return Encoder.of(folder)


def test_the_bundled_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    write(tmp_path)
    written_by_hand = {"gate.json"}
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in BUNDLED.iterdir()} - written_by_hand
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (BUNDLED / path.name).read_bytes(), f"{path.name}: run python -m embedded.make.data.fixtures"


@pytest.mark.parametrize("name", COUNTS)
def test_each_set_has_its_number_of_cases(name: str) -> None:
    assert len(SETS[name]()) == COUNTS[name]


@pytest.mark.parametrize("task", ["tool_call", "parallel_calls"])
def test_a_reply_in_the_published_syntax_is_parsed_back_with_its_types(encoder: Encoder, task: str) -> None:
    rng = Random(2)
    for _ in range(40):
        conversation = sample(rng, "heldout", task).with_effort(None)
        index = next(i for i, turn in enumerate(conversation.turns) if turn.calls)
        asked = Sample(conversation.turns[:index], conversation.tools)
        expect = {"kind": "calls", "calls": [{"name": c.name, "arguments": c.arguments} for c in conversation.turns[index].calls]}
        whole = encoder.document(Sample(conversation.turns[: index + 1], conversation.tools)).ids.tolist()
        prompt = encoder.prompt(asked).ids.tolist()
        assert whole[: len(prompt)] == prompt
        assert verdict(encoder, Case(asked, expect, 100), whole[len(prompt) :]) == ""


def test_a_thinking_reply_is_split_into_reasoning_and_answer(encoder: Encoder) -> None:
    conversation = sample(Random(3), "heldout", "sum").with_effort("high")
    asked = Sample(conversation.turns[:-1], (), "high")
    ids = encoder.document(conversation).ids.tolist()[len(encoder.prompt(asked).ids) :]
    reply = parse_reply(encoder, Case(asked, {"kind": "stop"}, 100), ids)
    assert reply.content == conversation.turns[-1].content
    assert conversation.turns[-1].thoughts is not None
    assert reply.reasoning == conversation.turns[-1].thoughts.high
    assert parse_reply(encoder, Case(asked, {"kind": "stop"}, 100), ids[:-1]).finish == "length"


@pytest.mark.parametrize("tokens", [1000, 4000, 12000])
def test_a_needle_case_has_about_the_asked_length(encoder: Encoder, tokens: int) -> None:
    assert len(encoder.prompt(needle_case(tokens).asked).ids) == pytest.approx(tokens, rel=0.1)
