"""The MTP layer: its rows are those of the training form, and guesses leave nothing behind in its memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from embedded.make.batch import of_rows
from embedded.make.model import Model
from embedded.make.weights import gather

from fixtures.random_model import RandomWeights, text_config
from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.config.model import ModelConfig
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.mtp import MtpDrafter
from lockstep.draft.policy import Policy
from lockstep.draft.stream import Ask, Kept, Proposal, Stream
from lockstep.model.glm import GlmModel
from lockstep.model.mtp import MtpLayer

CONFIG = text_config(mtp_layers=1, index_topk=32, vocab_size=304)
PAGES, SLOTS, LAYERS = 12, 3, CONFIG.num_hidden_layers


class Named(RandomWeights):
    """Keeps what it drew, so that another reader of the same names gets the same values."""

    def __init__(self) -> None:
        super().__init__(3, coded_experts=False)
        self.drawn: dict[str, torch.Tensor] = {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self.drawn:
            self.drawn[name] = super().tensor(name, shape)
        return self.drawn[name]


class Scene:
    """One trunk with memory, and as many MTP layers on its weights as asked for."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.weights = Named()
        self.config = ModelConfig(CONFIG, None, None, None)
        self.model = GlmModel.load(self.weights, self.config, "cpu")
        self.model.attach(TokenPool(CONFIG, PAGES, "cpu", torch.float32), StateSlots(CONFIG, SLOTS, "cpu"))

    def layer(self) -> MtpLayer:
        return MtpLayer.load(self.weights, CONFIG, self.model.embedding, PAGES, SLOTS, "cpu")

    def drafter(self, policy: Policy = Policy(3)) -> MtpDrafter:  # noqa: B008
        return MtpDrafter(self.layer(), LAYERS, self.model.head, CONFIG.vocab_size, policy, noise=1.0)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


def ids(count: int, seed: int = 1) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(3, 300) for _ in range(count))


@pytest.mark.parametrize("count", [1, 64, 150])
def test_rows_are_those_of_the_training_form_also_past_the_selection_limit(scene: Scene, count: int):
    tokens, layer = ids(count + 1), scene.layer()
    trunk = scene.model.run_prompt(Sequence(0, [3, 1, 2]), tokens[:-1], (LAYERS,)).taps[0]
    found = layer.run_prompt(Sequence(1, [4, 0, 5]), tokens[1:], trunk)[0]
    marks = torch.full((1, 256), 2, dtype=torch.uint8)
    marks[0, 0] |= 4
    padded = torch.zeros(1, 256, dtype=torch.long)
    padded[0, : count + 1] = torch.tensor(tokens)
    reference = Model(scene.config, gather(scene.weights.drawn), torch.float32)
    hidden = torch.zeros(256, CONFIG.hidden_size)
    hidden[:count] = trunk
    with torch.no_grad():
        wanted = reference.mtp(hidden, torch.roll(padded.flatten(), -1), of_rows(padded, marks)).hidden[count - 1]
    assert (found - wanted).abs().max().item() < 1e-3


class Reading:
    """A stream whose tokens are given: rows are absorbed as the engine would after rounds that keep `keep` rows."""

    def __init__(self, scene: Scene, drafter: MtpDrafter, slot: int, prompt: tuple[int, ...], reply: tuple[int, ...]) -> None:
        self.scene, self.drafter, self.reply = scene, drafter, reply
        request = EngineRequest(f"r{slot}", prompt, Sampling(temperature=0.0), 99)
        self.stream = Stream(request, Sequence(slot, list(range(4 * slot, 4 * slot + 4))))
        scene.model.slots.reset(slot)
        drafter.admit(self.stream)
        taps = scene.model.run_prompt(self.stream.sequence, prompt, (LAYERS,)).taps
        self.advance(1)
        drafter.absorb([Kept(self.stream, 0, (*prompt[1:], reply[0]), taps)])

    def advance(self, count: int) -> tuple[int, ...]:
        chosen = self.reply[self.stream.generated : self.stream.generated + count]
        self.stream.generated += count
        self.stream.pending = chosen[-1]
        return chosen

    def step(self, keep: int) -> Kept:
        """Run `keep` rows of the reply through the trunk and commit them."""
        start, pending = self.stream.sequence.length, self.stream.pending
        chosen = self.advance(keep)
        windows = [(self.stream.sequence, (pending, *chosen[:-1]))]
        taps = self.scene.model.run_step(windows, (LAYERS,)).taps
        self.scene.model.commit(windows, [keep])
        return Kept(self.stream, start, chosen, taps)


def proposals(scene: Scene, ask_between: bool, keeps: tuple[int, ...], policy: Policy = Policy(3)) -> tuple[list[Proposal], torch.Tensor]:  # noqa: B008
    """Last proposals and the layer's last rows of two streams that were read in rounds."""
    drafter = scene.drafter(policy)
    readings = [Reading(scene, drafter, slot, ids(length, length), ids(60, slot)) for slot, length in ((0, 70), (2, 5))]
    for keep in keeps:
        if ask_between:
            drafter.propose([Ask(reading.stream, 5) for reading in readings])
        drafter.absorb([reading.step(keep + at) for at, reading in enumerate(readings)])
    rows = torch.cat([drafter._chains[reading.stream.request.id].last for reading in readings])
    return drafter.propose([Ask(reading.stream, 5) for reading in readings]), rows


def test_guesses_leave_nothing_behind(scene: Scene):
    keeps = (1, 3, 2, 1, 5, 4, 1, 1, 7)
    plain, rows = proposals(scene, False, keeps, Policy(5))
    again, after = proposals(scene, True, keeps, Policy(5))
    assert plain == again
    assert torch.equal(rows, after)
    assert [len(proposal.tokens) for proposal in plain] == [5, 5]


def test_rows_absorbed_one_by_one_are_those_absorbed_together(scene: Scene):
    _, together = proposals(scene, False, (5, 5))
    drafter = scene.drafter()
    readings = [Reading(scene, drafter, slot, ids(length, length), ids(60, slot)) for slot, length in ((0, 70), (2, 5))]
    for reading, count in zip(readings, (10, 12), strict=True):
        for _ in range(count):
            drafter.absorb([reading.step(1)])
    rows = torch.cat([drafter._chains[reading.stream.request.id].last for reading in readings])
    assert (rows - together).abs().max().item() < 1e-4


def test_a_chain_alone_equals_the_chain_in_company_and_a_limit_cuts_it(scene: Scene):
    drafter = scene.drafter(Policy(4))
    readings = [Reading(scene, drafter, slot, ids(9, slot), ids(20, slot)) for slot in range(3)]
    asks = [Ask(reading.stream, limit) for reading, limit in zip(readings, (4, 1, 3), strict=True)]
    together = drafter.propose(asks)
    assert [len(proposal.tokens) for proposal in together] == [4, 1, 3]
    assert [drafter.propose([ask])[0].tokens for ask in asks] == [proposal.tokens for proposal in together]


def test_the_chain_stops_where_its_policy_says(scene: Scene):
    free, _ = proposals(scene, False, (1,), Policy(6))
    floor = free[0].chances[0] * free[0].chances[1] * 1.01
    cut, _ = proposals(scene, False, (1,), Policy(6, floor))
    # The draft that takes the product under the floor is drawn before it can be judged; the lineup cuts it.
    assert cut[0].tokens == free[0].tokens[:2]
    assert Policy(6, floor).depth(cut[0].chances) == 1


def test_a_checkpoint_without_the_layer_is_refused(scene: Scene):
    load: Callable[..., Any] = MtpLayer.load
    with pytest.raises(ValueError, match="num_nextn_predict_layers is 0"):
        load(scene.weights, text_config(), scene.model.embedding, PAGES, SLOTS, "cpu")
