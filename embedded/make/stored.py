"""A written checkpoint back in the trainer's form, so that a stage can begin from one. Knows the layout, no forward."""

from __future__ import annotations

from pathlib import Path

from embedded.make.layers import Weights
from embedded.make.quantise import PARTS, decoded_experts
from torch import Tensor

from checkpoints.layout import model_slots
from lockstep.kernels.exl3 import Exl3Matrix
from lockstep.weights import Checkpoint


def stored_parts(checkpoint: Path) -> tuple[Weights, dict[str, Tensor]]:
    """Plain tensors as fp32 and the experts' stored parts by published name: the `rest` and `experts` of stage `finish`."""
    source = Checkpoint(checkpoint)
    rest: Weights = {}
    coded: dict[str, Tensor] = {}
    for slot in model_slots(source.config):
        if slot.exl3:
            prefix = slot.name.removesuffix(".weight")
            matrix = source.matrix(prefix, slot.shape[1], slot.shape[0])
            assert isinstance(matrix, Exl3Matrix)
            coded |= {f"{prefix}.{part}": getattr(matrix, part) for part in PARTS}
        else:
            rest[slot.name] = source.tensor(slot.name, slot.shape).float()
    return rest, coded


def stored_weights(checkpoint: Path) -> Weights:
    """All tensors of trunk, MTP layer and tower as fp32 training tensors."""
    rest, coded = stored_parts(checkpoint)
    return rest | decoded_experts(coded, Checkpoint(checkpoint).config)
