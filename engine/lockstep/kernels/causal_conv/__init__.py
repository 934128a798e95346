"""Causal depthwise convolution with SiLU over rows that lie anywhere in a source. Knows no sequence."""

from torch import Tensor

from lockstep.kernels import host as host_rows
from lockstep.kernels.causal_conv import host, ref


def causal_conv(source: Tensor, index: Tensor, taps: Tensor) -> Tensor:
    """`SiLU(sum_j taps[j] * source[index[r, j]])` per channel: `source [N, C]`, `index [R, k]` int64, `taps [k, C]` fp32.

    The last tap is the row itself. Computed in fp32, returned `[R, C]` in source's type.
    """
    return host.causal_conv(source, index, taps) if host_rows.runs(source) else ref.causal_conv(source, index, taps)
