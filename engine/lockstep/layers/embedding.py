"""Embedding and head. A tied checkpoint stores one table for both."""

import torch
from torch import Tensor

from lockstep.config.model import TextConfig
from lockstep.kernels.linear import MAX_STEP_ROWS
from lockstep.layers.linear import Linear
from lockstep.layers.params import Params


class Embedding:
    """Token table `[V, D]`."""

    def __init__(self, params: Params, config: TextConfig) -> None:
        self.table = params.tensor("embed_tokens.weight", config.vocab_size, config.hidden_size)

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows `[R, D]`."""
        return self.table.index_select(0, ids)


class Head:
    """Logits from final-norm hidden rows; each rank computes its rows of the vocabulary and has them all in the end.

    `params` is the scope that holds `module`: lm_head, or embed_tokens when tied.
    """

    def __init__(self, params: Params, module: str, config: TextConfig) -> None:
        self.project = Linear.load(params, config.hidden_size, {module: params.share.part(config.vocab_size)})
        self.exchange = params.exchange

    def __call__(self, hidden: Tensor) -> Tensor:
        """`[R, D]` to fp32 `[R, V]`, any R; rows run in step tiles, so a row's logits do not depend on R."""
        return self.whole(self.part(hidden))

    def part(self, hidden: Tensor) -> Tensor:
        """This rank's columns `[R, V / ranks]`, in the type that travels; fp32 where they are all there are."""
        parts = [self.project(part) for part in hidden.split(MAX_STEP_ROWS)]
        columns = torch.cat(parts) if len(parts) > 1 else parts[0]
        return columns.float() if self.exchange.share.ranks == 1 else columns

    def whole(self, columns: Tensor) -> Tensor:
        """Logits, from what `part` gave each rank."""
        return self.exchange.join(columns).float()
