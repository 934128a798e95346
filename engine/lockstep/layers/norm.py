"""The root-mean-square norm with a learned weight."""

from torch import Tensor

from lockstep.kernels.rms_norm import rms_norm
from lockstep.layers.params import Params


class RmsNorm:
    """Norm over the last axis of width `width`."""

    def __init__(self, params: Params, name: str, width: int, eps: float) -> None:
        self.weight = params.tensor(f"{name}.weight", width)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """`[R, width]`, same type."""
        return rms_norm(x, self.weight, self.eps)
