"""Which launches a model's step makes, found by making it: the first layers that show every kind, prompt and step, few rows and many."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lockstep.cache import PAGE_TOKENS, Sequence, StateSlots, TokenPool
from lockstep.config.model import TextConfig
from lockstep.config.share import Share
from lockstep.kernels.tuned import KERNELS, Case, Configuration, Tuned
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint
from lockstep.weights.dense import coded_weights

# Both ends of every tile of 8 rows.
ROWS = (1, 8, 9, 16, 17, 24, 25, 32)
Asked = list[tuple[Tuned, Case, Configuration]]


class Unjoined:
    """Rank 0 of `ranks` with nobody to talk to: every shape is a rank's own, no value means anything."""

    def __init__(self, ranks: int) -> None:
        self.share, self.captured = Share(0, ranks), False

    def add(self, partial: Tensor) -> Tensor:
        """The part for the sum."""
        return partial

    def join(self, columns: Tensor) -> Tensor:
        """The own part in every rank's place."""
        return columns.repeat(1, self.share.ranks)

    def agree(self, number: float) -> float:
        """The own opinion."""
        return number


def asked_of(folder: Path, device: str, dense: str, ranks: int) -> Asked:
    """Every launch with a search space that a step, a prompt and the head of the checkpoint in `folder` make, with its default.

    Raises what reading a checkpoint raises.
    """
    checkpoint = Checkpoint(folder)
    config = replace(checkpoint.config, text=shortened(checkpoint.config.text))
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    for kernel in KERNELS.values():
        kernel.asked.clear()
    model = GlmModel.load(coded_weights(checkpoint, dense, device), config, device, dtype, Unjoined(ranks))
    slots = StateSlots(config.text, 1, device, dtype, share=model.exchange.share)
    model.attach(TokenPool(config.text, 2, device, dtype), slots)
    slots.reset(0)
    sequence = Sequence(0, [0, 1])
    model.run_prompt(sequence, [1] * PAGE_TOKENS)
    for rows in ROWS:
        model.head(model.run_step([(sequence, [1] * rows)]).hidden)
        model.commit([(sequence, [1] * rows)], [0])
    return [(kernel, case, default) for kernel in KERNELS.values() for case, default in kernel.asked.items()]


def shortened(config: TextConfig) -> TextConfig:
    """The fewest first layers that have every kind of attention beside every kind of feed-forward that the whole has."""
    kinds = list(zip(config.attention_kinds, config.mlp_kinds, strict=True))
    count = 1 + max(kinds.index(kind) for kind in set(kinds))
    return replace(
        config, num_hidden_layers=count, attention_kinds=config.attention_kinds[:count], mlp_kinds=config.mlp_kinds[:count], mtp_layers=0
    )
