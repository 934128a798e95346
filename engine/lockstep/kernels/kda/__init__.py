"""Kimi delta attention: per-head recurrent state `[key channel, value channel]` with per-channel decay.

Two forms. `step_window` walks rows one at a time and is what generated tokens use; replay uses the same call. `prompt_tile` takes 64
rows at once in chunk form and is what prompt tokens use. Their bits differ, so no token may pass through both.
"""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.causal_conv import causal_conv
from lockstep.kernels.kda import host, ref
from lockstep.kernels.kda.ref import RowInputs
from lockstep.kernels.linear import Packed, linear

TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Mixer:
    """What turns a layer's projections into inputs of the recurrence, for H heads of width d.

    `taps [k, 3 H d]` of the convolution, `decay_and_gate [2, d, H d]` packed, `rate [H, 1]`, `offset [H, d]` and `bound` as in `inputs`.
    `low` is `decay_and_gate` again as `chain` reads it.
    """

    taps: Tensor
    decay_and_gate: Packed
    rate: Tensor
    offset: Tensor
    bound: float
    low: Tensor


def prepare(projected: Tensor, source: Callable[[Tensor], Tensor], index: Tensor, mixer: Mixer) -> tuple[RowInputs, Tensor]:
    """q, k, v, log decay, beta as `step_window` takes them, and the gate `[R, H, d]`, from `projected [R, 3 H d + 2 d + H]`.

    `source` adds the rows' first 3 H d values to the earlier ones; `index [R, k]` points into what it returns (see `causal_conv`).
    """
    if host_rows.runs(projected):
        return host.prepare(projected, source, index, mixer)
    heads, width = mixer.offset.shape
    mixed, low, beta_input = projected.split_with_sizes([3 * heads * width, 2 * width, heads], -1)
    mixed = causal_conv(source(mixed), index, mixer.taps)
    decay, gate = linear(low.view(-1, 2, width), mixer.decay_and_gate).unbind(1)
    q, k, v, log_decay = inputs(mixed, decay, mixer.rate, mixer.offset, mixer.bound)
    return (q, k, v, log_decay, beta(beta_input)), gate.view(-1, heads, width)


def inputs(mixed: Tensor, decay_input: Tensor, rate: Tensor, offset: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Recurrence inputs from the convolved `mixed [R, 3 H d]` and `decay_input [R, H d]`, all fp32 `[R, H, d]`.

    Returns q (unit length times d^-0.5), k (unit length), v, and the log decay `bound * sigmoid(rate (decay_input + offset))`.
    `rate [H, 1]` is exp(A_log), `offset [H, d]` is dt_bias, both fp32.
    """
    return (host if host_rows.runs(mixed) else ref).inputs(mixed, decay_input, rate, offset, bound)


def beta(x: Tensor) -> Tensor:
    """How much of its error a row writes, `sigmoid(x)` fp32 `[R, H, 1]` for `x [R, H]`."""
    return (host if host_rows.runs(x) else ref).beta(x)


def step_window(state: Tensor, base: Tensor, scratch: Tensor, rows: RowInputs, active: Rows[int], out: Tensor) -> None:
    """Run windows of S sequences row by row from `state[base[s]]` and store the final states in `state[scratch[s]]`.

    `state [N, H, dk, dv]` fp32; `base`, `scratch [S]` int64. `rows` = q, k, v, log decay `[R, H, d]` and beta `[R, H, 1]`, fp32,
    ordered step by step: first the first row of every window, then the second of every window that has one, and so on; windows are
    sorted so that step j covers sequences 0 .. active[j] - 1. Row outputs go to `out [>= R, H, dv]` fp32.
    """
    if state.dtype.itemsize != 4 or sum(active) > out.shape[0] or base.shape != scratch.shape or active[0] != base.shape[0]:
        raise ValueError(
            f"state {state.dtype}, active {list(active)}, {base.shape[0]} sequences, out {tuple(out.shape)} do not fit together"
        )
    (host if host_rows.runs(state) else ref).step_window(state, base, scratch, rows, active, out)


def prompt_tile(state: Tensor, rows: RowInputs) -> tuple[Tensor, Tensor]:
    """Chunk form over one tile of 64 rows from `state [H, dk, dv]` fp32. Returns outputs `[64, H, dv]` and the next state.

    `rows` as for `step_window`; rows without a token carry log decay 0 and beta 0 and leave the state alone. Range: a log decay
    lies in [-5, 0], so sub-blocks of 16 rows, taken relative to their middle, stay within exp(+-40).
    """
    if rows[0].shape[0] != TILE_ROWS:
        raise ValueError(f"{rows[0].shape[0]} rows; needed: one tile of {TILE_ROWS}")
    return ref.prompt_tile(state, rows)
