"""The real shapes of one rank of two without a file: tensors drawn on the GPU when a layer asks for them, EXL3 experts as random words.

Benches of a whole model begin with `opened`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from result import begun
from torch import Tensor

from checkpoints.layout import model_slots
from checkpoints.sizes import Sizes, model_config
from checkpoints.synthetic import ONE_OF_TWO, drawn
from lockstep.config.model import ModelConfig, parse_model_config
from lockstep.kernels.exl3 import Exl3Matrix
from lockstep.model.glm import GlmModel
from lockstep.weights.dense import coded_weights


class Drawn:
    """A checkpoint of `layers` trunk layers; each tensor has its own values, the same for the same seed and order of asking."""

    def __init__(self, layers: int, size: Sizes = ONE_OF_TWO, device: str = "cuda", seed: int = 1) -> None:
        size = replace(size, layers=layers, dense_layers=min(3, layers), drafter_taps=(0,))
        self.config: ModelConfig = parse_model_config(model_config(size))
        self._slots = {slot.name: slot for slot in model_slots(self.config)}
        self._draw = torch.Generator(device).manual_seed(seed)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A plain tensor."""
        found = drawn(self._slots[name], self._draw)
        assert isinstance(found, Tensor)
        assert tuple(found.shape) == shape
        return found.to(self._slots[name].dtype)

    def matrix(self, prefix: str, k: int, n: int) -> Exl3Matrix | Tensor:
        """The weight of a linear layer."""
        slot = self._slots[f"{prefix}.weight"]
        found = drawn(slot, self._draw)
        assert slot.shape == (n, k)
        return found if isinstance(found, Exl3Matrix) else found.to(slot.dtype)


def model_of(layers: int, dense: str) -> GlmModel:
    """The first `layers` layers of one rank's share, with large dense matrices in the form `dense`."""
    source = Drawn(layers)
    return GlmModel.load(coded_weights(source, dense, "cuda"), source.config, "cuda", torch.bfloat16)


def opened(description: str | None, dense: str) -> tuple[Path, GlmModel, dict[str, Any]]:
    """Reads the command line: where the report goes, the model asked for (45 layers, `dense` if nothing is said), the report's head."""
    asked, report = begun(description, layers=45, dense=dense)
    since = time.monotonic()
    model = model_of(asked.layers, asked.dense)
    torch.cuda.synchronize()
    report |= {"layers": asked.layers, "dense": asked.dense, "weights": "drawn, each layer its own"}
    report |= {"drawn_s": round(time.monotonic() - since, 1), "weights_gb": round(torch.cuda.memory_allocated() / 1e9, 2)}
    print(report, flush=True)
    return asked.out, model, report
