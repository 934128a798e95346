"""The embedded checkpoint on a CUDA device: token ids and states of serial steps, whoever drafts and whoever rides along."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from fixtures.drafters import CorruptedOracle, RandomDrafter
from fixtures.stepped_engine import Reply, SteppedEngine, Tally
from lockstep.config.serving import ServingOptions
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.loader import Surroundings, load_drafting
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint
from lockstep.weights.dense import coded_weights

pytestmark = pytest.mark.gpu
EMBEDDED = Path(__file__).parents[2] / "embedded"
REPLY = 24
SAMPLINGS = {"greedy": Sampling(temperature=0.0), "cut": Sampling(temperature=1.0, top_k=40, top_p=0.9, min_p=0.02, seed=6)}
TEXTS = (
    "Count from 1 to 20: 1 2 3 4 5 6 7",
    '{"name": "Ada", "city": "London"} {"name": "Bob", "city": "Paris"} {"name":' * 3,
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n" * 12,
)
FORMS = {"bf16": ("bf16", "bf16"), "fp8": ("fp8", "fp8"), "q4": ("q4", "bf16")}


@pytest.fixture(scope="module", params=FORMS)
def stepped(request: pytest.FixtureRequest) -> SteppedEngine:
    dense, kv = FORMS[request.param]
    checkpoint = Checkpoint(EMBEDDED)
    vocabulary = 1 + max(Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).get_vocab().values())
    model = GlmModel.load(coded_weights(checkpoint, dense, "cuda"), checkpoint.config, "cuda", torch.bfloat16)
    return SteppedEngine(model, vocabulary, kv=kv)


@pytest.fixture(scope="module")
def asked() -> list[EngineRequest]:
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    ids = [tuple(tokenizer.encode(text).ids) for text in TEXTS]
    assert max(map(len, ids)) > 260, "one context must be longer than the selected keys"
    return [EngineRequest(f"{name}{at}", prompt, how, REPLY + at) for name, how in SAMPLINGS.items() for at, prompt in enumerate(ids)]


@pytest.fixture(scope="module")
def serial(stepped: SteppedEngine, asked: list[EngineRequest]) -> dict[str, Reply]:
    return {one.id: stepped.serve([(0, one)])[one.id] for one in asked}


def bits(replies: dict[str, Reply]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: reply.bits for name, reply in replies.items()}


def test_a_request_repeats_itself(stepped: SteppedEngine, asked: list[EngineRequest], serial: dict[str, Reply]):
    for one in asked[:2]:
        assert stepped.serve([(0, one)])[one.id].bits == serial[one.id].bits


def test_company_changes_nothing(stepped: SteppedEngine, asked: list[EngineRequest], serial: dict[str, Reply]):
    assert bits(stepped.serve([(0, one) for one in asked])) == bits(serial), "together"
    assert bits(stepped.serve([(3 * at, one) for at, one in enumerate(reversed(asked))])) == bits(serial), "staggered"


def test_slices_of_a_prompt_change_nothing(stepped: SteppedEngine, asked: list[EngineRequest], serial: dict[str, Reply]):
    usual, stepped.prompt_slice = stepped.prompt_slice, 64
    try:
        assert bits(stepped.serve([(0, asked[2])])) == {asked[2].id: serial[asked[2].id].bits}
    finally:
        stepped.prompt_slice = usual


@pytest.mark.parametrize("name", ["random", "oracle", "mtp", "dflash2"])
def test_drafted_equals_serial(stepped: SteppedEngine, asked: list[EngineRequest], serial: dict[str, Reply], name: str):
    checkpoint, tally = Checkpoint(EMBEDDED), Tally()
    around = Surroundings(checkpoint, stepped.model, stepped.vocabulary, stepped.pool.pages, stepped.slots.slots)
    if name == "random":
        drafter, most = RandomDrafter(stepped.vocabulary), 7
    elif name == "oracle":
        drafter, most = CorruptedOracle({key: reply.tokens for key, reply in serial.items()}, stepped.vocabulary), 15
    else:
        fields = {"drafter": str(EMBEDDED / "drafter") if name == "dflash2" else name, "copy_tokens": 0}
        drafting = load_drafting(ServingOptions(EMBEDDED, device="cuda", **fields), around)  # type: ignore[arg-type]
        drafter, most = drafting.drafter, drafting.max_drafts
    for one in asked:
        assert stepped.serve([(0, one)], drafter, most, tally=tally)[one.id].bits == serial[one.id].bits, f"alone {one.id}"
    assert bits(stepped.serve([(0, one) for one in asked], drafter, most, tally=tally)) == bits(serial), "together"
    assert tally.rounds > 0
