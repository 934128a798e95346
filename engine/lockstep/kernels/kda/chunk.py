"""Kimi delta attention of prompt tiles on a CUDA device: two launches for all tiles of a slice of one sequence."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.linear import many

if TYPE_CHECKING:
    from lockstep.kernels.kda import Mixer

SOURCE = Path(__file__).with_name("chunk.cu")
ROWS = 64


def macros(width: int, pitch: int, card: str) -> dict[str, int]:
    """What the source is compiled with."""
    return {"WIDTH": width, "PITCH": pitch, "BLOCKS": 2 if card == "sm_90" else 1}


def shared_bytes(width: int) -> dict[str, int]:
    """Dynamic shared memory of a block of each kernel."""
    return {
        "prepare": ROWS * ((width + 8) * 4 + (width + 4) * 4 + (ROWS + 4) * 4),
        "scan": ROWS * (width + 16) * 4 + (width + ROWS) * (ROWS + 16) * 2 + (width + ROWS) * 34 * 4,
    }


def tiles(projected: Tensor, count: int, tail: Tensor, state: Tensor, mixer: "Mixer") -> tuple[Tensor, Tensor]:
    """Outputs fp32 `[R, H, d]` and the gate bf16 `[R, H, d]` of whole tiles `projected [R, 3 H d + 2 d + H]` bf16; `count` rows count.

    `tail [3, 3 H d]` are the rows before; `state [H, d, d]` becomes that behind the rows. Operands of products have 11 bits, sums 24.
    """
    heads, width = mixer.offset.shape
    rows = len(projected)
    low = projected[:, 3 * heads * width : 3 * heads * width + 2 * width].view(rows, 2, width)
    decay, gate = many.product(low, mixer.decay_and_gate.weight).unbind(1)
    found, shared = macros(width, projected.shape[1], cuda.target(projected.device)), shared_bytes(width)
    kernels = cuda.load(SOURCE, found, projected.device, shared)
    left = (3 * ROWS * width + ROWS * ROWS) * 2 + (ROWS + 1) * width * 4  # bytes of a tile of a head; see `Chunk` in the source
    chunks = torch.empty(rows // ROWS * heads * left, dtype=torch.uint8, device=projected.device)
    given = (projected, decay, tail, mixer.taps, mixer.rate, mixer.offset, chunks, count, heads, mixer.bound)
    kernels["prepare"](rows // ROWS * heads, 256, given, True)
    out = torch.empty(rows, heads, width, dtype=torch.float32, device=projected.device)
    kernels["scan"](heads * width // 32, 256, (chunks, state, out, rows // ROWS, heads), True)
    return out, gate.view(rows, heads, width)
