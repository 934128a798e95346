"""One checkpoint folder: its configuration, and its tensors as the model asks for them, whatever way they are stored.

Knows the three ways a matrix may be stored (plain, block-scaled fp8, EXL3); nothing of layers, devices or ranks.
"""

from pathlib import Path

import torch
from torch import Tensor

from lockstep.config.model import ModelConfig, read_model_config
from lockstep.kernels.exl3 import Exl3Matrix
from lockstep.weights.exl3 import is_exl3, read_exl3
from lockstep.weights.source import TensorSource, WeightError

FP8_BLOCK = 128
_PLAIN = (torch.bfloat16, torch.float16, torch.float32)


class Checkpoint:
    """A checkpoint folder. Raises ConfigError or WeightError if it cannot be used."""

    def __init__(self, directory: Path) -> None:
        self.config: ModelConfig = read_model_config(directory)
        self.source = TensorSource(directory)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A plain tensor of the given shape in its stored type (bf16, fp16 or fp32); fp8 is expanded to fp32."""
        return read_plain(self.source, name, shape)

    def matrix(self, prefix: str, k: int, n: int) -> Exl3Matrix | Tensor:
        """The weight of a linear layer with `k` inputs and `n` outputs: an EXL3 matrix, or a plain [n, k] tensor."""
        if is_exl3(self.source, prefix):
            return read_exl3(self.source, prefix, k, n)
        return self.tensor(f"{prefix}.weight", (n, k))


def read_plain(source: TensorSource, name: str, shape: tuple[int, ...]) -> Tensor:
    """Tensor `name` of `shape` in bf16, fp16 or fp32. Values of e4m3 with a `_scale_inv` beside them become fp32 = value * scale.

    Raises WeightError naming the tensor, what was found and what was needed.
    """
    values = source.get(name)
    if tuple(values.shape) != shape:
        raise WeightError(f"{name}: found shape {tuple(values.shape)}, the model needs {shape}")
    scale_name = f"{name}_scale_inv"
    if values.dtype == torch.float8_e4m3fn:
        if scale_name not in source:
            raise WeightError(f"{name}: found fp8 values without {scale_name}; the checkpoint is incomplete")
        return expand_fp8(values, source.get(scale_name), name)
    if values.dtype not in _PLAIN:
        raise WeightError(f"{name}: found {values.dtype}, needed bf16, fp16, fp32 or block-scaled e4m3")
    if scale_name in source:
        raise WeightError(f"{name}: found {values.dtype} with {scale_name} beside it; scales belong to fp8 values only")
    return values


def expand_fp8(values: Tensor, scale: Tensor, name: str) -> Tensor:
    """e4m3 [out, in] times one scale a 128 x 128 block, [ceil(out/128), ceil(in/128)] -> fp32 [out, in]."""
    if values.ndim != 2:
        raise WeightError(f"{name}: found fp8 values with {values.ndim} axes, block scales need 2")
    blocks = tuple(-(-size // FP8_BLOCK) for size in values.shape)
    if tuple(scale.shape) != blocks or not scale.is_floating_point():
        raise WeightError(f"{name}_scale_inv: found {scale.dtype} {tuple(scale.shape)}, needed floats {blocks}")
    rows, columns = values.shape
    spread = scale.float().repeat_interleave(FP8_BLOCK, 0)[:rows].repeat_interleave(FP8_BLOCK, 1)[:, :columns]
    return values.float() * spread
