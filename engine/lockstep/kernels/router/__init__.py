"""Choice of routed experts with a total order. Knows nothing of the experts."""

from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.router import host, ref


def route(logits: Tensor, correction: Tensor, count: int, factor: float) -> tuple[Tensor, Tensor]:
    """Experts `[R, count]` int64 and weights `[R, count]` fp32 for `logits [R, E]` fp32.

    Chosen by sigmoid + `correction [E]`, largest first, equal values by lower expert id; slot order is that order. Weights are the
    bare sigmoids over their sum (+ 1e-20), times `factor`."""
    return (host if host_rows.runs(logits) else ref).route(logits, correction, count, factor)
