"""A checkpoint whose large dense matrices are coded in 8 or 4 bits as they are read. Knows which ones, by published name; not how.

Experts stay as stored. So do matrices that are small or steer others: norms, router, hyper-connections, convolutions, low-rank gates, the
indexer's keys and weights; and those multiplied head by head (kv_b, f_b, g_b).
"""

import re

import torch
from torch import Tensor

from lockstep.kernels.coded import CodedMatrix, encode_fp8, encode_q4
from lockstep.kernels.exl3 import Exl3Matrix
from lockstep.weights.source import WeightError
from lockstep.weights.split import Stored

_LARGE = re.compile(
    r"self_attn\.([qkvo]_proj|q_[ab]_proj)|mlp\.(shared_experts\.)?(gate|up|down)_proj|eh_proj",
)
# 8 bits under q4 too: the head and what every later token reads decide more than they weigh.
_FINE = re.compile(r"self_attn\.(kv_a_proj_with_mqa|indexer\.wq_b)")
_LAYER = re.compile(r"model\.language_model\.layers\.\d+\.(.+)")
_HEADS = ("lm_head", "model.language_model.embed_tokens")


class DenseWeights:
    """`stored` with large plain matrices coded as `form`, fp8 or q4, on `device`. Raises what `stored` raises, and WeightError for q4
    where a group does not fit."""

    def __init__(self, stored: Stored, form: str, device: torch.device | str) -> None:
        self._stored, self._form, self._device = stored, form, device

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._stored.tensor(name, shape)

    def matrix(self, prefix: str, k: int, n: int) -> Exl3Matrix | CodedMatrix | Tensor:
        """The weight of a linear layer; EXL3 stays EXL3."""
        found = self._stored.matrix(prefix, k, n)
        form = self._form_of(prefix)
        if form == "bf16" or not isinstance(found, Tensor):
            return found
        # exact: coded from the stored values, before any rank takes its share, so that ranks share one coded matrix.
        weight = found.to(self._device)
        try:
            return encode_fp8(weight) if form == "fp8" else encode_q4(weight)
        except ValueError as error:
            raise WeightError(f"{prefix}: {error}, or --dense fp8") from None

    def _form_of(self, prefix: str) -> str:
        layer = _LAYER.fullmatch(prefix)
        if prefix in _HEADS or (layer and _FINE.fullmatch(layer[1])):
            return "fp8"
        return self._form if layer and _LARGE.fullmatch(layer[1]) else "bf16"


def coded_weights(stored: Stored, form: str, device: torch.device | str) -> Stored:
    """`stored` in `form`, a word of `config.serving.DENSE_FORMS`: itself for bf16."""
    return stored if form == "bf16" else DenseWeights(stored, form, device)
