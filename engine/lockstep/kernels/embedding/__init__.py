"""Token embedding. Knows nothing of streams or pictures."""

from torch import Tensor

from lockstep.kernels.embedding import ref


def embed(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of `table [V, D]` for `ids [R]` int64, `[R, D]`, unscaled."""
    return ref.embed(table, ids)
