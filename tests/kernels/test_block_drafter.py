"""The block drafter against a plain NumPy form of its description: context in uneven pieces, several streams at once, rings that wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fixtures.drafter_oracle import OracleDrafter
from lockstep.cache import Sequence
from lockstep.config.drafter import DrafterConfig
from lockstep.core.types import EngineRequest, Sampling
from lockstep.draft.dflash2 import BlockDrafts
from lockstep.draft.policy import Policy
from lockstep.draft.stream import Ask, Kept, Stream
from lockstep.layers.params import Params
from lockstep.model.dflash2 import BlockDrafter, Target

VOCABULARY, HIDDEN = 96, 32


def config(**changes: Any) -> DrafterConfig:
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 20, "block_size": 8,
        "target_layer_ids": (0, 2), "mask_token_id": 5, "conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6,
        "selector_top_k": 7, "input_embedding_scale": 1.0, "output_multiplier": 1.0, "logit_softcap": 0.0,
    }  # fmt: skip
    return DrafterConfig(**(fields | changes))


class Drawn:
    """Random tensors, the same again for the same name, also as float64 arrays."""

    def __init__(self, seed: int) -> None:
        self.seed, self.arrays = seed, {}

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self.arrays:
            generator = np.random.default_rng([self.seed, len(self.arrays)])
            scale = 1.0 if len(shape) == 1 or "codebook" in name else 0.4
            self.arrays[name] = scale * generator.standard_normal(shape) + (1.0 if len(shape) == 1 else 0.0)
        return torch.from_numpy(self.arrays[name]).float()

    def matrix(self, prefix: str, k: int, n: int) -> torch.Tensor:
        return self.tensor(f"{prefix}.weight", (n, k))


class Pair:
    """The drafter and one oracle per slot, on the same weights."""

    def __init__(self, seed: int, settings: DrafterConfig, slots: int = 4) -> None:
        torch.set_num_threads(1)
        self.generator = np.random.default_rng(seed)
        embed, head = (self.generator.standard_normal((VOCABULARY, HIDDEN)) for _ in range(2))
        table, rows = torch.from_numpy(embed).float(), torch.from_numpy(head).float()
        weights, self.config = Drawn(seed), settings
        self.model = BlockDrafter(
            Params(weights, "", torch.device("cpu"), torch.float32),
            settings,
            Target(lambda ids: table[ids], lambda x: x @ rows.T, VOCABULARY),
            slots,
        )
        sizes = {
            "layers": settings.num_hidden_layers, "head_dim": settings.head_dim, "eps": settings.rms_norm_eps, "theta": settings.rope_theta,
            "window": settings.sliding_window, "mask": settings.mask_token_id, "top_k": settings.selector_top_k,
            "embed_scale": settings.input_embedding_scale, "multiplier": settings.output_multiplier, "softcap": settings.logit_softcap,
        }  # fmt: skip
        self.drafts = BlockDrafts(self.model, Policy(7), noise=1.0, edge=1.0)
        self.oracles = [OracleDrafter(weights.arrays, sizes, embed, head) for _ in range(slots)]
        greedy = Sampling(temperature=0.0)
        self.streams = [Stream(EngineRequest(f"r{slot}", (1,), greedy, 99), Sequence(slot), generated=1) for slot in range(slots)]

    def grow(self, counts: dict[int, int]) -> None:
        """Commit rows with random taps in some slots, in one call."""
        kept = []
        for slot, count in counts.items():
            taps, stream = self.generator.standard_normal((2, count, HIDDEN)), self.streams[slot]
            kept.append(Kept(stream, stream.sequence.length, (0,) * count, torch.from_numpy(taps).float()))
            self.oracles[slot].absorb(taps.transpose(1, 0, 2).reshape(count, -1))
            stream.sequence.length += count
        self.drafts.absorb(kept)

    def compare(self, slots: list[int]) -> int:
        for slot in slots:
            self.streams[slot].pending = int(self.generator.integers(VOCABULARY))
        found = self.drafts.propose([Ask(self.streams[slot], 7) for slot in slots])
        for slot, proposal in zip(slots, found, strict=True):
            path, chances = self.oracles[slot].propose(self.streams[slot].pending, self.config.block_size)
            assert list(proposal.tokens) == path
            assert proposal.chances == pytest.approx(chances, abs=2e-4)
        return sum(len(proposal.tokens) for proposal in found)


@pytest.mark.parametrize("settings", [config(), config(sliding_window=9), config(sliding_window=2048, num_hidden_layers=3)])
@pytest.mark.parametrize("seed", [1, 2])
def test_drafts_of_streams_together_equal_those_of_the_plain_form(settings: DrafterConfig, seed: int):
    pair, drafts = Pair(seed, settings), 0
    for counts in ({0: 1, 2: 3}, {0: 7}, {0: 1, 1: 40, 2: 8}, {0: 20, 2: 1}, {1: 5}, {0: 31, 1: 2, 2: 9}):
        pair.grow(counts)
        drafts += pair.compare([slot for slot in (2, 0, 1) if pair.streams[slot].sequence.length])
    assert drafts == 7 * 16


def test_scale_multiplier_and_softcap_are_applied():
    pair = Pair(3, config(input_embedding_scale=2.5, output_multiplier=0.5, logit_softcap=4.0))
    pair.grow({3: 12})
    pair.compare([3])


def test_states_of_a_block_agree_to_rounding():
    pair = Pair(4, config())
    pair.grow({1: 33})
    states = pair.model._block(torch.tensor([1]), torch.tensor([33]), [17])[0]
    np.testing.assert_allclose(states.numpy(), pair.oracles[1].block(17, 8), atol=2e-5)


def test_fewer_drafts_are_the_first_of_all():
    pair = Pair(5, config())
    pair.grow({0: 12})
    pair.streams[0].pending = 3
    (seven,) = pair.drafts.propose([Ask(pair.streams[0], 7)])
    (three,) = pair.drafts.propose([Ask(pair.streams[0], 3)])
    assert three.tokens == seven.tokens[:3]
