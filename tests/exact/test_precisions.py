"""Each form of dense matrices and cache is an exact engine of its own: drafted is serial, together is alone, slices are the whole."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from fixtures.drafters import CorruptedOracle
from fixtures.stepped_engine import SteppedEngine, Tally
from lockstep.cache import Sequence
from lockstep.config.serving import DENSE_FORMS, KV_FORMS, ServingOptions
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.loader import Surroundings, load_drafting
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint
from lockstep.weights.dense import coded_weights

EMBEDDED = Path(__file__).parents[2] / "embedded"
FORMS = list(product(DENSE_FORMS, KV_FORMS))
REPLY = 10
TEXTS = (
    "Count from 1 to 20: 1 2 3 4 5 6 7",
    '{"name": "Ada", "city": "London"} {"name": "Bob", "city": "Paris"} {"name":' * 2,
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n" * 12,
)
SAMPLINGS = (Sampling(temperature=0.0), Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=6), Sampling(temperature=0.0))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))


@pytest.fixture(scope="module")
def requests(tokenizer: Tokenizer) -> list[EngineRequest]:
    prompts = [tuple(tokenizer.encode(text).ids) for text in TEXTS]
    assert [len(prompt) > 260 for prompt in prompts] == [False, False, True], "one context must be longer than the selected keys"
    pairs = zip(prompts, SAMPLINGS, strict=True)
    return [EngineRequest(f"r{at}", prompt, sampling, REPLY) for at, (prompt, sampling) in enumerate(pairs)]


@pytest.fixture(scope="module", params=FORMS, ids=["-".join(pair) for pair in FORMS])
def stepped(request: pytest.FixtureRequest, checkpoint: Checkpoint, tokenizer: Tokenizer) -> SteppedEngine:
    dense, kv = request.param
    model = GlmModel.load(coded_weights(checkpoint, dense, "cpu"), checkpoint.config, "cpu")
    return SteppedEngine(model, 1 + max(tokenizer.get_vocab().values()), kv=kv)


Bits = dict[str, tuple[tuple[int, ...], str]]


@pytest.fixture(scope="module")
def serial(stepped: SteppedEngine, requests: list[EngineRequest]) -> Bits:
    return {one.id: stepped.serve([(0, one)])[one.id].bits for one in requests}


def test_requests_together_and_staggered_have_the_bits_they_have_alone(stepped: SteppedEngine, serial: Bits, requests: list[EngineRequest]):
    for gap in (0, 3):
        replies = stepped.serve([(gap * at, one) for at, one in enumerate(requests)])
        assert {name: reply.bits for name, reply in replies.items()} == serial


def test_drafts_change_no_bit(stepped: SteppedEngine, serial: Bits, requests: list[EngineRequest]):
    tally = Tally()
    oracle = CorruptedOracle({name: tokens for name, (tokens, _) in serial.items()}, stepped.vocabulary)
    replies = stepped.serve([(at, one) for at, one in enumerate(requests)], oracle, 7, (), tally)
    assert {name: reply.bits for name, reply in replies.items()} == serial
    assert tally.partly > 2


def test_a_prompt_in_slices_leaves_the_state_of_the_whole_prompt(stepped: SteppedEngine, requests: list[EngineRequest]):
    prompt, hashes = requests[-1].prompt_ids, set()
    stepped.model.attach(stepped.pool, stepped.slots)
    for order, cuts in enumerate(([], [64, 192], [128, 256])):
        stepped.slots.reset(order)
        pages = random.Random(order).sample(range(stepped.pool.pages), 1 + len(prompt) // 64)
        sequence = Sequence(order, pages)
        for start, end in zip([0, *cuts], [*cuts, len(prompt)], strict=True):
            stepped.model.run_prompt(sequence, prompt[start:end])
        hashes.add(stepped.model.state_hash(sequence))
    assert len(hashes) == 1


def test_the_hash_sees_codes_and_exponents_of_kept_rows(stepped: SteppedEngine, requests: list[EngineRequest]):
    stepped.model.attach(stepped.pool, stepped.slots)
    stepped.slots.reset(0)
    sequence = Sequence(0, [3])
    stepped.model.run_prompt(sequence, requests[0].prompt_ids)
    wanted = stepped.model.state_hash(sequence)
    width = stepped.model.config.kv_lora_rank
    last = stepped.pool.latents[1, 3 * 64 + len(requests[0].prompt_ids) - 1]
    for place in {0, width - 1, min(width, len(last) - 1)}:
        kept = last[place].clone()
        last[place] += 1
        assert stepped.model.state_hash(sequence) != wanted
        last[place] = kept
    stepped.pool.latents[:, 3 * 64 + len(requests[0].prompt_ids) :] += 1
    assert stepped.model.state_hash(sequence) == wanted


def test_the_forms_are_different_references(checkpoint: Checkpoint, tokenizer: Tokenizer, requests: list[EngineRequest]):
    states, logits = set(), []
    for dense, kv in FORMS:
        stepped = SteppedEngine(
            GlmModel.load(coded_weights(checkpoint, dense, "cpu"), checkpoint.config, "cpu"), 2000, slots=1, pages=8, kv=kv
        )
        stepped.model.attach(stepped.pool, stepped.slots)
        sequence = Sequence(0, list(range(8)))
        logits.append(stepped.model.head(stepped.model.run_prompt(sequence, requests[1].prompt_ids).hidden)[0])
        states.add(stepped.model.state_hash(sequence))
    assert len(states) == len(FORMS)
    distances = [float((one - logits[0]).abs().max() / logits[0].abs().max()) for one in logits]
    assert all(0 < distance < 0.25 for distance in distances[1:]), distances


@pytest.mark.parametrize("dense", ["fp8", "q4"])
def test_an_mtp_layer_coded_with_the_trunk_drafts_and_changes_no_bit(
    checkpoint: Checkpoint, tokenizer: Tokenizer, requests: list[EngineRequest], dense: str
):
    vocabulary = 1 + max(tokenizer.get_vocab().values())
    stepped = SteppedEngine(GlmModel.load(coded_weights(checkpoint, dense, "cpu"), checkpoint.config, "cpu"), vocabulary, kv="fp8")
    around = Surroundings(checkpoint, stepped.model, vocabulary, stepped.pool.pages, stepped.slots.slots)
    drafting = load_drafting(ServingOptions(EMBEDDED, drafter="mtp", copy_tokens=0, dense=dense, kv="fp8"), around)
    assert drafting.drafter.pool is not None
    assert drafting.drafter.pool.latents.dtype == torch.uint8
    tally = Tally()
    drafted = stepped.serve([(0, one) for one in requests], drafting.drafter, drafting.max_drafts, (), tally)
    assert tally.accepted > 0
    serial = stepped.serve([(0, one) for one in requests])
    assert {name: reply.bits for name, reply in drafted.items()} == {name: reply.bits for name, reply in serial.items()}
