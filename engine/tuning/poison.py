"""Memory that nobody wrote reads as NaN, so that a kernel which leaves something out is seen."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def poisoned() -> Iterator[None]:
    """Inside, uninitialised tensors are filled with NaN, or the largest whole number of their type."""
    usual = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(usual[0], warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = usual[1]  # type: ignore[attr-defined]
