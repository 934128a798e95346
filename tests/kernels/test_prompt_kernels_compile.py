"""Kernels of prompt slices compile for every card, within a block's shared memory of the smallest, and spill nothing."""

from __future__ import annotations

import pytest

from fixtures.compiled import compiled, holds
from lockstep.kernels.exl3 import CODEBOOKS
from lockstep.kernels.experts import tiles
from lockstep.kernels.indexer import many as indexing
from lockstep.kernels.indexer import paged
from lockstep.kernels.kda import chunk
from lockstep.kernels.latent_attention import many as attention
from lockstep.kernels.linear import many as products

TARGET = "sm_120"
CARDS = [TARGET, "sm_90"]
# Hidden and expert width of one rank of two, of one rank alone, and of the embedded checkpoint.
WIDTHS = ((4096, 1024), (4096, 2048), (256, 128))


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("widths", WIDTHS)
def test_experts_of_many_rows_compile_for_every_card(card: str, widths: tuple[int, int]):
    for gated in (True, False):
        macros = tiles.macros(*widths, 8, "mcg", card, gated)
        found = compiled(tiles.SOURCE, macros, card)
        holds(found, {"tile_product"}, tiles.shared_bytes(macros) if card == TARGET else 0)
        assert found["tile_product"].registers * 256 * (1 + gated) * macros["BLOCKS"] <= 65536
        assert macros["STAGES"] >= 3, "a place is filled again two blocks behind the one that is read"
        assert 64 * (128 * (1 + gated) + 4) * 4 <= tiles.shared_bytes(macros), "sums take the room of the inputs"
    holds(compiled(tiles.SOURCE, tiles.small_macros(*widths, 8, card), card), {"plan_tiles", "rotate_tiles", "combine_tiles"})


@pytest.mark.parametrize("codebook", CODEBOOKS)
def test_every_codebook_compiles_for_the_target(codebook: str):
    macros = tiles.macros(*WIDTHS[0], 8, codebook, TARGET, True)
    holds(compiled(tiles.SOURCE, macros, TARGET), {"tile_product"}, tiles.shared_bytes(macros))


@pytest.mark.parametrize("card", CARDS)
def test_the_delta_rule_in_chunks_compiles_for_every_card(card: str):
    for width in (128, 64, 32):
        found, shared = compiled(chunk.SOURCE, chunk.macros(width, 12576, card), card), chunk.shared_bytes(width)
        for name in ("prepare", "scan"):
            holds({name: found[name]}, {name}, shared[name])


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("coded", [False, True])
def test_attention_and_choice_of_pools_compile_for_every_card(card: str, coded: bool):
    for heads, latent, pools in ((32, 512, 512), (64, 512, 512), (4, 64, 64)):
        macros = attention.macros(heads, latent, pools, coded, card)
        holds(compiled(attention.SOURCE, macros, card), {"attend"}, attention.shared_bytes(macros))
    for heads, width, pools in ((32, 128, 512), (8, 32, 64)):
        macros = paged.macros(heads, width, pools, 12288, 8192, 2336, 2176, coded)
        holds(compiled(indexing.SOURCE, macros, card), {"score", "select"})


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("form", range(len(products.FORMS)))
def test_expanded_weights_compile_for_every_card(form: int, card: str):
    holds(compiled(products.SOURCE, {"K": 4096, "FORM": form}, card), {"expand", "swiglu"})
