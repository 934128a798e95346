"""EXL3 groups of a checkpoint: which tensors belong to one matrix, and every rule they must obey.

Knows nothing of the model; width and codebook are properties of each matrix. Source: the published EXL3 layout.
"""

import torch
from torch import Tensor

from lockstep.kernels.exl3 import MULTIPLIERS, Exl3Matrix
from lockstep.weights.source import TensorSource, WeightError


def is_exl3(source: TensorSource, prefix: str) -> bool:
    """True if the module `prefix` is stored as EXL3. Raises WeightError for a group that is half there."""
    has = {leaf for leaf in ("trellis", "suh", "svh", "su", "sv", "mcg", "mul1") if f"{prefix}.{leaf}" in source}
    if "trellis" in has:
        return True
    if has:
        raise WeightError(f"{prefix}: found {', '.join(sorted(has))} without a trellis; the EXL3 group is incomplete")
    return False


def read_exl3(source: TensorSource, prefix: str, k: int, n: int) -> Exl3Matrix:
    """The EXL3 matrix `prefix` with `k` inputs and `n` outputs. Raises WeightError naming tensor, found and needed."""
    if f"{prefix}.weight" in source:
        raise WeightError(f"{prefix}: found both a trellis and a weight; only one can be meant")
    trellis = source.get(f"{prefix}.trellis")
    bias = source.get(f"{prefix}.bias") if f"{prefix}.bias" in source else None
    try:
        matrix = Exl3Matrix(trellis, _scale(source, prefix, "h"), _scale(source, prefix, "v"), _codebook(source, prefix), bias)
    except ValueError as error:
        if isinstance(error, WeightError):
            raise
        raise WeightError(f"{prefix}.{error}") from None
    for leaf, values in (("suh", matrix.suh), ("svh", matrix.svh), ("bias", bias)):
        if values is not None and not bool(torch.isfinite(values).all()):
            raise WeightError(f"{prefix}.{leaf}: found values that are not finite; the file is damaged")
    if (matrix.k, matrix.n) != (k, n):
        raise WeightError(f"{prefix}.trellis: found {matrix.k} inputs and {matrix.n} outputs, the model needs {k} and {n}")
    return matrix


def _codebook(source: TensorSource, prefix: str) -> str:
    """The codebook a marker tensor names; no marker means 3inst."""
    marked = [name for name in MULTIPLIERS if f"{prefix}.{name}" in source]
    if len(marked) > 1:
        raise WeightError(f"{prefix}: found the markers {' and '.join(marked)}, needed at most one")
    for name in marked:
        marker = source.get(f"{prefix}.{name}")
        if marker.dtype != torch.int32 or marker.numel() != 1:
            raise WeightError(f"{prefix}.{name}: found {marker.dtype} of {marker.numel()} values, needed one int32")
        value = int(marker.item()) & 0xFFFFFFFF
        if value != MULTIPLIERS[name]:
            raise WeightError(f"{prefix}.{name}: found multiplier {value:#010x}, this codebook has {MULTIPLIERS[name]:#010x}")
        return name
    return "3inst"


def _scale(source: TensorSource, prefix: str, side: str) -> Tensor:
    """suh / svh, or the packed signs su / sv of very old checkpoints. `side` is "h" (inputs, suh) or "v" (outputs, svh)."""
    scale, signs = ("suh", "su") if side == "h" else ("svh", "sv")
    present = [leaf for leaf in (scale, signs) if f"{prefix}.{leaf}" in source]
    if len(present) != 1:
        raise WeightError(f"{prefix}: found {' and '.join(present) or 'neither'} of {scale} and {signs}, needed exactly one")
    values = source.get(f"{prefix}.{present[0]}")
    return values if present[0] == scale else _unpack_signs(values, f"{prefix}.{signs}")


def _unpack_signs(packed: Tensor, name: str) -> Tensor:
    """int16 [m] -> fp16 [16 m]: bit b of word w set means that element 16 w + b is -1."""
    if packed.dtype != torch.int16 or packed.ndim != 1:
        raise WeightError(f"{name}: found {packed.dtype} with {packed.ndim} axes, needed int16 with 1")
    bits = (packed.int()[:, None] >> torch.arange(16)) & 1
    return (1 - 2 * bits).flatten().half()
