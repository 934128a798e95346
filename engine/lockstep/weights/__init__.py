"""Checkpoint folders: safetensors, EXL3 groups, block-scaled fp8, and the EXL3 encoder. Knows nothing of layers or ranks."""

from lockstep.weights.checkpoint import Checkpoint
from lockstep.weights.source import TensorSource, WeightError

__all__ = ["Checkpoint", "TensorSource", "WeightError"]
