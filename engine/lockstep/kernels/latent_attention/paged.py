"""Latent attention of a step's rows on a CUDA device, over pages: three launches around the products."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.round import Round

SOURCE = Path(__file__).with_name("paged.cu")
SPLITS, TILE_KEYS = 22, 32


@dataclass(frozen=True, slots=True)
class Norms:
    """Weights bf16 of the norms behind a layer's first product; `position_bias [4, d]` fp32 belongs to the pooled key."""

    query: Tensor
    latent: Tensor
    key: Tensor
    key_bias: Tensor
    position_bias: Tensor
    eps: float


def macros(norms: Norms, index_heads: int, heads: int, pools: int, coded: bool) -> dict[str, int]:
    """What the source is compiled with."""
    query, latent, key = len(norms.query), len(norms.latent), len(norms.key)
    sizes = {"QUERY": query, "LATENT": latent, "KEY": key, "WEIGHTS": index_heads, "PITCH": query + latent + 2 * key + index_heads}
    return {**sizes, "HEADS": heads, "POOLS": pools, "SPLITS": SPLITS, "FP8": int(coded)}


def shared_bytes(found: dict[str, int]) -> int:
    """Dynamic shared memory of a block of `attend`."""
    heads = 16 * -(-min(found["HEADS"], 32) // 16)
    return (heads + TILE_KEYS) * found["LATENT"] * 2 + heads * ((TILE_KEYS + 1) * 4 + (TILE_KEYS + 8) * 2 + 4)


def prepare(
    projected: Tensor, at: Round, layer: int, norms: Norms, latents: Tensor, pooled: Tensor, kernels: dict[str, cuda.Kernel]
) -> Tensor:
    """Queries `[rows, q_lora]` through their norm, from `projected`; latents and pooled keys of the rows are stored."""
    query = projected.new_empty(at.rows, len(norms.query))
    weights = (norms.query, norms.latent, norms.key, norms.key_bias, norms.position_bias, at.index_tail[layer])
    kernels["prepare"](
        at.rows * 3, 256, (projected, at.plan, *weights, query, latents, at.raw[layer], pooled, at.rows, at.most, norms.eps), True
    )
    return query


def attend(query: Tensor, at: Round, latents: Tensor, chosen: Tensor | None, scale: float, kernels: dict[str, cuda.Kernel]) -> Tensor:
    """As `latent_attention.attend` for absorbed `query [rows, H, r]` over the keys that each row has or has chosen."""
    query = query.contiguous()
    rows, heads, width = query.shape
    sums, weights = (torch.empty(rows, SPLITS, heads, size, dtype=torch.float32, device=query.device) for size in (width, 2))
    given = (
        query,
        latents,
        at.plan if chosen is None else chosen,
        at.plan,
        at.pages,
        sums,
        weights,
        rows,
        at.most,
        at.pages.shape[1],
        scale,
    )
    kernels["attend"](rows * SPLITS * -(-heads // 32), 256, given, True)
    out = torch.empty_like(query)
    kernels["join"](rows * heads, width // 4, (sums, weights, at.plan, out), True)
    return out


def commit(at: Round, kernels: dict[str, cuda.Kernel]) -> None:
    """Make the indexer's newest rows those that `at.plan` keeps, in every layer."""
    layers, slots, _, width = at.index_tail.shape
    kernels["commit"](layers * at.most, width, (at.index_tail, at.raw, at.plan, at.rows, at.most, slots))


def load(found: dict[str, int], device: torch.device) -> dict[str, cuda.Kernel]:
    """The kernels for one kind of layer."""
    return cuda.load(SOURCE, found, device, {"prepare": 0, "attend": shared_bytes(found), "join": 0, "commit": 0})
