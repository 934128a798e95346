"""Checkpoint folders as tensors: safetensors, EXL3 groups, matrices coded at load, a rank's share. Writes none; knows nothing of layers."""

from lockstep.weights.checkpoint import Checkpoint
from lockstep.weights.source import TensorSource, WeightError

__all__ = ["Checkpoint", "TensorSource", "WeightError"]
