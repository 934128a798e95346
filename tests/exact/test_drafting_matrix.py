"""Whoever drafts, whoever rides along: token ids and final states are those of serial steps alone.

LOCKSTEP_FULL_MATRIX=1 runs longer replies and every drafter; CI runs the short form.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from fixtures.drafters import CopyOfTranscript, CorruptedOracle, RandomDrafter
from fixtures.house import House, Reply, Tally
from lockstep.config.serving import ServingOptions
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft import copy
from lockstep.draft.loader import Drafting, Surroundings, load_drafting
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint

EMBEDDED = Path(__file__).parents[2] / "embedded"
FULL = os.environ.get("LOCKSTEP_FULL_MATRIX") == "1"
REPLY = 60 if FULL else 14
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "warm": Sampling(temperature=0.6, top_k=0, top_p=1.0, seed=5),
    "cut": Sampling(temperature=1.0, top_k=40, top_p=0.9, min_p=0.02, seed=6),
}
LOADED = {
    "mtp": {"drafter": "mtp", "copy_tokens": 0},
    "dflash2": {"drafter": str(EMBEDDED / "drafter"), "copy_tokens": 0, "draft_policy": "f7"},
    "all": {"drafter": str(EMBEDDED / "drafter"), "draft_policy": "cost7:noisy"},
    "mtp-cut": {"drafter": "mtp", "draft_policy": "c3:0.4"},
}
DRAFTERS = ("random", "oracle", "copy", *(LOADED if FULL else ("mtp", "dflash2", "all")))
TEXTS = (
    "Count from 1 to 20: 1 2 3 4 5 6 7",
    "Repeat this: the cat sat on the mat and the dog sat on the cat. The cat sat on",
    '{"name": "Ada", "city": "London"} {"name": "Bob", "city": "Paris"} {"name":' * 3,
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n" * 12,
)
Serial = dict[str, dict[str, Reply]]


@pytest.fixture(scope="module")
def house(checkpoint: Checkpoint) -> House:
    vocabulary = 1 + max(Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).get_vocab().values())
    return House(GlmModel.load(checkpoint, checkpoint.config, "cpu"), vocabulary)


@pytest.fixture(scope="module")
def drafting(house: House, checkpoint: Checkpoint) -> Iterator[dict[str, Drafting]]:
    """Loaded drafters, shared by all cells: what one cell leaves in their memory may not matter to the next."""
    around = Surroundings(checkpoint, house.model, house.vocabulary, house.pool.pages, house.slots.slots)
    with pytest.MonkeyPatch.context() as patch:
        # Short grams: short replies give copies too, many of them wrong.
        patch.setattr(copy, "PROMPT_GRAM", 2)
        patch.setattr(copy, "REPLY_GRAM", 2)
        yield {name: load_drafting(ServingOptions(EMBEDDED, **fields), around) for name, fields in LOADED.items() if name in DRAFTERS}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    return [tuple(tokenizer.encode(text).ids) for text in TEXTS]


def requests(prompts: list[tuple[int, ...]], sampling: str) -> list[EngineRequest]:
    return [EngineRequest(f"{sampling}{at}", prompt, SAMPLINGS[sampling], REPLY + at) for at, prompt in enumerate(prompts)]


@pytest.fixture(scope="module")
def serial(house: House, prompts: list[tuple[int, ...]]) -> Serial:
    """Every request alone, one row a step."""
    assert [len(prompt) > 260 for prompt in prompts] == [False, False, False, True], "one context must be longer than the selected keys"
    replies = {name: {one.id: house.serve([(0, one)])[one.id] for one in requests(prompts, name)} for name in SAMPLINGS}
    assert all(len(reply.tokens) >= REPLY and reply.state for named in replies.values() for reply in named.values())
    return replies


@pytest.fixture(scope="module")
def total() -> Iterator[dict[str, Tally]]:
    """Rounds of the whole matrix by drafter, printed at its end (pytest -s)."""
    tallies = {name: Tally() for name in DRAFTERS}
    yield tallies
    for name, tally in tallies.items():
        print(f"{name}: {tally.rounds} drafted rounds, {tally.partly} partly kept, {tally.accepted} of {tally.drafted} drafts kept")  # noqa: T201


def noise(prompts: list[tuple[int, ...]], sampling: str) -> list[EngineRequest]:
    """Neighbours that are cancelled."""
    return [EngineRequest(f"noise{at}", prompt[3:], SAMPLINGS[sampling], 200) for at, prompt in enumerate(prompts[:3])]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_drafted_equals_serial(
    house: House,
    drafting: dict[str, Drafting],
    serial: Serial,
    prompts: list[tuple[int, ...]],
    total: dict[str, Tally],
    name: str,
    sampling: str,
):
    tally, asked = Tally(), requests(prompts, sampling)
    wanted = {one.id: serial[sampling][one.id].bits for one in asked}
    known = {one.id: serial[sampling][one.id].tokens for one in asked}

    def served(arrivals: list[tuple[int, EngineRequest]], cancels: list[tuple[int, str]]) -> dict[str, tuple[tuple[int, ...], str]]:
        extra = {
            "random": RandomDrafter(house.vocabulary),
            "oracle": CorruptedOracle(known, house.vocabulary),
            "copy": CopyOfTranscript(known, 15),
        }
        drafter, most = (extra[name], 15) if name in extra else (drafting[name].drafter, drafting[name].max_drafts)
        replies = house.serve(arrivals, drafter, most, cancels, tally)
        return {key: reply.bits for key, reply in replies.items()}

    for one in asked:
        assert served([(0, one)], []) == {one.id: wanted[one.id]}, "alone"
    assert served([(0, one) for one in asked], []) == wanted, "together"
    staggered = [(3 * at, one) for at, one in enumerate(reversed(asked))]
    assert served(staggered, []) == wanted, "staggered"
    company = [(2 * at, one) for at, one in enumerate(noise(prompts, sampling))]
    cancels = [(2 * at + 4 + at, one.id) for at, (_, one) in enumerate(company)]
    assert served([*company, *staggered], cancels) == wanted, "with cancels"
    total[name].add(tally)
    assert tally.rounds > 0
    assert name not in ("random", "oracle", "copy") or tally.partly > 10


def test_requests_that_refuse_drafts_are_served_serially_beside_drafted_ones(house: House, serial: Serial, prompts: list[tuple[int, ...]]):
    asked = requests(prompts, "greedy")
    mixed = [replace(one, draft=at % 2 == 0) for at, one in enumerate(asked)]
    oracle = CorruptedOracle({one.id: serial["greedy"][one.id].tokens for one in asked}, house.vocabulary, errs=0.0)
    replies = house.serve([(0, one) for one in mixed], oracle, 7)
    assert {key: reply.bits for key, reply in replies.items()} == {key: reply.bits for key, reply in serial["greedy"].items()}
    for one in mixed:
        usage = replies[one.id].usage
        assert (usage.drafted_tokens > 0) == one.draft
        assert usage.rounds == (one.max_tokens if not one.draft else usage.rounds)
        assert usage.completion_tokens == one.max_tokens
