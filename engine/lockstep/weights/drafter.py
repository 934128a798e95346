"""One drafter folder: its configuration for a target and its tensors. Knows the two spellings of the codebooks, nothing of layers."""

from pathlib import Path

from torch import Tensor

from lockstep.config.drafter import DrafterConfig, read_drafter_config
from lockstep.config.model import TextConfig
from lockstep.weights.checkpoint import read_plain
from lockstep.weights.source import TensorSource


class DrafterFolder:
    """A drafter folder. Raises ConfigError or WeightError if it cannot serve `target`."""

    def __init__(self, directory: Path, target: TextConfig) -> None:
        self.config: DrafterConfig = read_drafter_config(directory, target)
        self._source = TensorSource(directory)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of the given shape in its stored type; a codebook may carry `.weight` behind its name."""
        spelled = f"{name}.weight" if name not in self._source and f"{name}.weight" in self._source else name
        return read_plain(self._source, spelled, shape)

    def matrix(self, prefix: str, k: int, n: int) -> Tensor:
        """Weight `[n, k]` of a linear layer."""
        return self.tensor(f"{prefix}.weight", (n, k))
