"""The clamped SwiGLU activation. Knows no projection."""

from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.linear import Packed, linear
from lockstep.kernels.swiglu import host, ref


def swiglu_pair(both: Tensor, limit: float) -> Tensor:
    """The same for gate and up side by side, `[R, 2 F]` to `[R, F]`."""
    if host_rows.runs(both):
        return host.swiglu_pair(both, limit)
    gate, up = both.chunk(2, -1)
    return ref.swiglu(gate, up, limit)


def swiglu_between(x: Tensor, gate_up: Packed, down: Packed, limit: float) -> Tensor:
    """`down(swiglu_pair(gate_up(x)))` for plain weights, `[R, in]` to `[R, out]`."""
    if host_rows.runs(x):
        return host.swiglu_between(x, gate_up, down, limit)
    return linear(swiglu_pair(linear(x, gate_up), limit), down)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """`SiLU(min(gate, limit)) * clamp(up, -limit, limit)`, same shape and type as both."""
    return host.swiglu(gate, up, limit) if host_rows.runs(gate) else ref.swiglu(gate, up, limit)
