"""A checkpoint as one rank of several sees it: asked for its share of a tensor, it cuts that share out of the stored whole.

Knows the published names and along which axis each is split; a name not listed here is replicated. Nothing is ever encoded again: the
bytes of an EXL3 trellis or a coded matrix are copied.
"""

import re
from typing import Protocol

from torch import Tensor

from lockstep.config.share import Share
from lockstep.kernels.coded import CodedMatrix
from lockstep.kernels.exl3 import HADAMARD, TILE, Exl3Matrix
from lockstep.weights.source import WeightError

_LAYER = re.compile(r"model\.language_model\.layers\.\d+\.(.+)")
_OUTPUTS = re.compile(
    r"self_attn\.([qkv]_proj|[qkv]_conv1d|[fg]_b_proj|b_proj|A_log|dt_bias|q_b_proj|kv_b_proj)"
    r"|mlp\.(shared_experts\.)?(gate|up)_proj"
)
_INPUTS = re.compile(r"self_attn\.o_proj|mlp\.(shared_experts\.)?down_proj")
_EXPERT = re.compile(r"mlp\.experts\.\d+\.(gate|up|down)_proj")
# A tied checkpoint is asked for this table twice: as a matrix it is the head, as a tensor the embedding, which every rank has whole.
_HEADS = ("lm_head", "model.language_model.embed_tokens")


class Stored(Protocol):
    """The whole checkpoint; see `layers.params.WeightSource`."""

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor: ...
    def matrix(self, prefix: str, k: int, n: int) -> Exl3Matrix | CodedMatrix | Tensor: ...


class SplitWeights:
    """The share `share` of `stored`, asked for by local sizes. `splits_experts` as `Share.splits_experts` says of the configuration.

    Raises what `stored` raises, and WeightError where a cut would go through a Hadamard block of an EXL3 matrix or a group of a q4 matrix.
    """

    def __init__(self, stored: Stored, share: Share, splits_experts: bool) -> None:
        self._stored, self._share, self._splits_experts = stored, share, splits_experts

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """This rank's part of a plain tensor, `shape` being the part's."""
        if self._axis(name.removesuffix(".weight")) is None or name.startswith(_HEADS[1]):
            return self._stored.tensor(name, shape)
        whole = self._stored.tensor(name, (shape[0] * self._share.ranks, *shape[1:]))
        return whole.narrow(0, self._share.rank * shape[0], shape[0])

    def matrix(self, prefix: str, k: int, n: int) -> Exl3Matrix | CodedMatrix | Tensor:
        """This rank's part of a linear layer, `k` inputs and `n` outputs being the part's."""
        axis, ranks, rank = self._axis(prefix), self._share.ranks, self._share.rank
        if axis is None:
            return self._stored.matrix(prefix, k, n)
        whole = self._stored.matrix(prefix, k * ranks if axis else k, n if axis else n * ranks)
        if isinstance(whole, Exl3Matrix):
            return _cut_inputs(whole, prefix, rank * k, k) if axis else _cut_outputs(whole, prefix, rank * n, n)
        if isinstance(whole, Tensor):
            return (whole.narrow(1, rank * k, k) if axis else whole.narrow(0, rank * n, n)).contiguous()
        try:
            return whole.inputs(rank * k, k) if axis else whole.outputs(rank * n, n)
        except ValueError as error:
            raise WeightError(f"{prefix}: {error}, so fewer --ranks or --dense fp8") from None

    def _axis(self, name: str) -> int | None:
        """0 if the outputs of this module are split, 1 if its inputs are, None if every rank has it whole."""
        if name in _HEADS:
            return 0
        layer = _LAYER.fullmatch(name)
        if layer is None:
            return None
        module = layer[1]
        if _EXPERT.fullmatch(module):
            return (1 if module.endswith("down_proj") else 0) if self._splits_experts else None
        return 0 if _OUTPUTS.fullmatch(module) else 1 if _INPUTS.fullmatch(module) else None


def _cut_outputs(matrix: Exl3Matrix, prefix: str, start: int, count: int) -> Exl3Matrix:
    _refuse_broken_blocks(prefix, "outputs", start, count)
    trellis = matrix.trellis.narrow(1, start // TILE, count // TILE).contiguous()
    bias = None if matrix.bias is None else matrix.bias.narrow(0, start, count)
    return Exl3Matrix(trellis, matrix.suh, matrix.svh.narrow(0, start, count), matrix.codebook, bias)


def _cut_inputs(matrix: Exl3Matrix, prefix: str, start: int, count: int) -> Exl3Matrix:
    """The ranks' results are added, so only the first one has the bias."""
    _refuse_broken_blocks(prefix, "inputs", start, count)
    trellis = matrix.trellis.narrow(0, start // TILE, count // TILE).contiguous()
    return Exl3Matrix(trellis, matrix.suh.narrow(0, start, count), matrix.svh, matrix.codebook, None if start else matrix.bias)


def _refuse_broken_blocks(prefix: str, side: str, start: int, count: int) -> None:
    if start % HADAMARD or count % HADAMARD:
        raise WeightError(
            f"{prefix}: this rank's {side} are {start} to {start + count} of an EXL3 matrix; needed: multiples of {HADAMARD}, "
            "so fewer --ranks or a checkpoint that stores it plain"
        )
