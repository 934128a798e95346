"""EXL3 experts of many rows on a CUDA device: rows grouped by expert into tiles of up to 128, weights decoded once a tile. Knows no router.

A row's bits depend on the row and its experts alone. They are not those of `grouped`, which steps use."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.exl3 import CODEBOOKS, HADAMARD

if TYPE_CHECKING:
    from lockstep.kernels.experts.grouped import GroupedExperts

SOURCE = Path(__file__).with_name("tiles.cu")
LEAST_ROWS, LEAST_HIDDEN, BLOCK = 64, 256, 64
# By kind of card: most rows of a tile; then for down and for gate and up blocks of inputs in shared memory (three at least), and thread
# blocks a multiprocessor. No choice changes a bit.
LAUNCHES = {"sm_90": (128, ((4, 2), (4, 1))), "sm_120": (96, ((4, 2), (4, 1)))}
_MASK = 0x8FFF8FFF - (1 << 32)


def macros(hidden: int, width: int, slots: int, codebook: str, card: str, gated: bool) -> dict[str, int]:
    """What a product is compiled with: of gate and up, or of down."""
    stages, blocks = LAUNCHES.get(card, LAUNCHES["sm_120"])[1][gated]
    return small_macros(hidden, width, slots, card) | {
        "K": hidden if gated else width, "GATED": int(gated), "STAGES": stages, "BLOCKS": blocks,
        "CODEBOOK": CODEBOOKS.index(codebook), "WGMMA": int(card == "sm_90"),
    }  # fmt: skip


def small_macros(hidden: int, width: int, slots: int, card: str) -> dict[str, int]:
    """What the kernels around the products are compiled with."""
    return {"HIDDEN": hidden, "WIDTH": width, "SLOTS": slots, "ROWS": LAUNCHES.get(card, LAUNCHES["sm_120"])[0]}


def shared_bytes(found: dict[str, int]) -> int:
    """Dynamic shared memory of a block of a product: rings of inputs, two barriers a place; sums take the same room."""
    sides = 1 + found["GATED"]
    return sides * found["STAGES"] * (found["ROWS"] * BLOCK * 2 + 16)


def apply(x: Tensor, chosen: Tensor, weights: Tensor, experts: "GroupedExperts", limit: float) -> Tensor:
    """See `experts.apply`; `x` bf16 of any number of rows, bf16 out: each expert's output is rounded, sums are fp32."""
    x, (rows, slots) = x[: len(chosen)], chosen.shape
    hidden, width, count, card = x.shape[1], experts.down_suh.shape[1], len(experts.down_suh), cuda.target(x.device)
    pairs = rows * slots
    make = lambda *size, kind=torch.float16: torch.empty(*size, dtype=kind, device=x.device)  # noqa: E731
    x, chosen, weights = x.contiguous(), chosen.contiguous(), weights.contiguous()
    small = small_macros(hidden, width, slots, card)
    around = cuda.load(SOURCE, small, x.device, dict.fromkeys(("plan_tiles", "rotate_tiles", "combine_tiles"), 0))
    most, places = min(pairs, count + pairs // small["ROWS"]), pairs + 7 * min(pairs, count) & ~7
    plan = make(2 + 3 * most + pairs, kind=torch.int32)
    around["plan_tiles"](1, 1024, (chosen, plan, pairs, most, count), True)
    # A product reads whole tiles, so up to a tile behind the last slot.
    rotated, own = (make(sides * inputs * places + small["ROWS"] * BLOCK) for sides, inputs in ((2, hidden), (1, width)))
    blocks = -(-pairs * hidden // LEAST_HIDDEN // 8)
    around["rotate_tiles"](blocks, 256, (x, chosen, plan, experts.in_suh, rotated, pairs, places, most, count), True)
    found = make(places, hidden, kind=torch.bfloat16)
    for gated, packed, given, svh, out in (
        (True, experts.gate_up, rotated, experts.in_svh, own),
        (False, experts.down, own, experts.down_svh, found),
    ):
        shape = macros(hidden, width, slots, experts.codebook, card, gated)
        product = cuda.load(SOURCE, shape, x.device, {"tile_product": shared_bytes(shape)})["tile_product"]
        arguments = (packed, given, plan, svh, experts.down_suh, out, places, most, count, float(limit), _MASK)
        product(most * (width if gated else hidden) // HADAMARD, 256 * (1 + gated), arguments, True)
    out = make(rows, hidden, kind=torch.bfloat16)
    around["combine_tiles"](rows, min(256, hidden // 8), (found, plan, weights, out, most), True)
    return out
