"""The draw of a token: what candidates weigh, and rows drawn on a CUDA device. The plain form of the whole is `run.sampler`."""

from lockstep.kernels.sampling.ref import limit, weights

__all__ = ["limit", "weights"]
