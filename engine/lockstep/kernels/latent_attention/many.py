"""Latent attention of a prompt slice's rows on a CUDA device, over pages: one launch. Choice of keys is made elsewhere."""

from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda

SOURCE = Path(__file__).with_name("many.cu")
TILE_KEYS = 32


def macros(heads: int, latent: int, pools: int, coded: bool, card: str) -> dict[str, int]:
    """What the source is compiled with."""
    return {"HEADS": heads, "LATENT": latent, "POOLS": pools, "FP8": int(coded), "BLOCKS": 2 if card == "sm_90" else 1}


def shared_bytes(found: dict[str, int]) -> int:
    """Dynamic shared memory of a block."""
    heads, latent = 16 * -(-min(found["HEADS"], 32) // 16), found["LATENT"]
    return 2 * TILE_KEYS * latent * 2 + latent // 64 * heads * TILE_KEYS * 4 + heads * (TILE_KEYS + 8) * 2


def attend(
    query: Tensor, latents: Tensor, chosen: Tensor | None, pages: Tensor, first: int, count: int, scale: float, pools: int
) -> Tensor:
    """As `latent_attention.attend` for absorbed `query [R, H, r]` of rows at positions `first ..`, of which `count` count; others are zero.

    `chosen [R, pools]` int32 is read for rows with more pools than that.
    """
    query = query.contiguous()
    rows, heads, latent = query.shape
    found = macros(heads, latent, pools, latents.dtype is torch.uint8, cuda.target(query.device))
    kernel = cuda.load(SOURCE, found, query.device, {"attend": shared_bytes(found)})["attend"]
    out = torch.empty_like(query)
    given = (query, latents, pages if chosen is None else chosen, pages, out, first, count, scale)
    kernel(rows * -(-heads // 32), 256, given, True)
    return out
