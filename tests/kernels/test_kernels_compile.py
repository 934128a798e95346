"""Every launch of a CUDA kernel compiles for every card, within a block's shared memory of the smallest, and spills nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fixtures.compiled import compiled, holds
from lockstep.kernels import cuda, experts
from lockstep.kernels.cuda import MOST_SHARED_BYTES
from lockstep.kernels.exl3 import CODEBOOKS
from lockstep.kernels.experts import grouped, tiles
from lockstep.kernels.experts.grouped import Shape
from lockstep.kernels.hyper_connection import fused as sites
from lockstep.kernels.indexer import many as prompt_indexing
from lockstep.kernels.indexer import paged as indexing
from lockstep.kernels.kda import chain, chunk
from lockstep.kernels.latent_attention import many as prompt_attention
from lockstep.kernels.latent_attention import paged as attention
from lockstep.kernels.linear import RowMatrix, rows
from lockstep.kernels.linear import many as prompt_products
from lockstep.kernels.rms_norm import fused as norms
from lockstep.kernels.router import choose
from lockstep.kernels.sampling import fused as sampling

TARGET = "sm_120"
# Real shapes of one rank of two and of one rank alone, and those of the embedded checkpoint: hidden and expert width.
WIDTHS = ((4096, 1024), (4096, 2048), (256, 128))
SHAPES = [shape for hidden, width in WIDTHS for shape in (Shape(hidden, 2 * width, 2), Shape(width, hidden, 1))]
ALL_SOURCES = sorted(path for path in Path(experts.__file__).parents[1].rglob("*.cu"))


@pytest.mark.parametrize(("card", "shape"), [*((TARGET, shape) for shape in SHAPES), *(("sm_90", shape) for shape in SHAPES[:2])])
def test_products_of_experts_compile_for_every_card(card: str, shape: Shape):
    launch = grouped.LAUNCHES[card]
    found = compiled(grouped.SOURCE, shape.macros(launch, "mcg"), card)
    holds(found, {"product"}, launch.shared_bytes)
    assert found["product"].registers * launch.warps * 32 * launch.blocks <= 65536


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("variant", [grouped.REAL, grouped.BYTES_ONLY, grouped.ALU_ONLY])
def test_every_codebook_and_variant_compiles_for_the_target(codebook: str, variant: int):
    launch = grouped.LAUNCHES[TARGET]
    found = compiled(grouped.SOURCE, SHAPES[0].macros(launch, codebook, variant), TARGET)
    holds(found, {"product"}, launch.shared_bytes)


@pytest.mark.parametrize(("card", "widths"), [*((TARGET, widths) for widths in WIDTHS), ("sm_90", WIDTHS[0])])
def test_kernels_around_the_products_compile_for_every_card(card: str, widths: tuple[int, int]):
    found = compiled(grouped.SOURCE, grouped.small_macros(*widths, slots=8), card)
    holds(found, {"prepare", "activate", "combine"})


@pytest.mark.parametrize("form", rows.FORMS)
@pytest.mark.parametrize("count", [1, 9, 32])
def test_dense_products_compile_for_the_target(form: str, count: int):
    part = lambda form, inputs, outputs, heads=1: RowMatrix(form, inputs, outputs, torch.empty(0), torch.empty(0), heads)  # noqa: E731
    alone = [[part(form, *shape)] for shape in ((4096, 12288), (4096, 2048), (1024, 4096), (256, 768))]
    joined = [part(form, 4096, 1536), part("fp8", 4096, 512), part("bf16", 4096, 288)]
    for parts, paired in (*((one, False) for one in alone), (joined, False), (alone[1], True), ([part(form, 256, 16384, 32)], False)):
        macros = rows.macros(parts, count, TARGET, paired)
        holds(compiled(rows.SOURCE, macros, TARGET), {"rows_product", "encode"}, rows.shared_bytes(macros))


def test_kernels_between_the_products_compile_for_the_target():
    for heads, width in ((32, 128), (64, 128), (4, 32)):
        macros = chain.macros(heads, width, 3 * heads * width + 2 * width + heads)
        holds(compiled(chain.SOURCE, macros, TARGET), {"window", "commit"})
    for sizes in ((4096, 288, 8), (256, 16, 2)):
        holds(compiled(choose.SOURCE, choose.macros(*sizes), TARGET), {"logits", "choose"})
    for hidden in (4096, 256):
        holds(compiled(sites.SOURCE, {"HIDDEN": hidden}, TARGET), {"begin", "mix", "merge"})
    for width in (64, 128, 512, 1536, 4096):
        for gated in (False, True):
            holds(compiled(norms.SOURCE, norms.macros(width, gated), TARGET), {"row_norm"})


@pytest.mark.parametrize("card", [TARGET, "sm_90"])
def test_the_sampler_compiles_for_every_card(card: str):
    for vocabulary, kind in ((154880, torch.bfloat16), (2276, torch.float32)):
        holds(compiled(sampling.SOURCE, sampling.macros(vocabulary, kind), card), {"sample"})


@pytest.mark.parametrize("coded", [False, True])
def test_attention_over_pages_compiles_for_the_target(coded: bool):
    none = torch.empty(0)
    norms = lambda query, latent, key: attention.Norms(torch.empty(query), torch.empty(latent), torch.empty(key), none, none, 1e-5)  # noqa: E731
    for own, heads, index_heads, pools in ((norms(1536, 512, 128), 32, 32, 512), (norms(64, 64, 32), 4, 8, 64)):
        macros = attention.macros(own, index_heads, heads, pools, coded)
        found = compiled(attention.SOURCE, macros, TARGET)
        holds(found, {"prepare", "attend", "join", "commit"})
        assert attention.shared_bytes(macros) <= MOST_SHARED_BYTES
        key = len(own.key)
        places = (heads * 256 + index_heads * key, heads * 256, macros["PITCH"], macros["PITCH"] - key - index_heads)
        holds(compiled(indexing.SOURCE, indexing.macros(index_heads, key, pools, *places, coded), TARGET), {"score", "select"})


def test_every_source_is_compiled_here():
    of_prompts = (tiles, chunk, prompt_attention, prompt_indexing, prompt_products)  # see test_prompt_kernels_compile.py
    here = (grouped, rows, chain, sites, norms, sampling, attention, indexing, choose)
    assert set(ALL_SOURCES) == {module.SOURCE for module in (*here, *of_prompts)}


def test_a_source_that_does_not_compile_is_named_with_the_compilers_words(tmp_path: Path):
    source = tmp_path / "broken.cu"
    source.write_text('extern "C" __global__ void k(float* x) { x[0] = y; }')
    with pytest.raises(cuda.CompileError, match=r"broken\.cu for sm_120.*\"y\" is undefined"):
        cuda.compile_source(source, {}, TARGET)


def test_what_spills_is_seen(tmp_path: Path):
    source = tmp_path / "spilling.cu"
    body = "float v[96]; for (int i = 0; i < 96; i++) v[i] = x[i * 7];"
    body += "for (int r = 0; r < 3; r++) for (int i = 0; i < 96; i++) v[i] = v[i] * v[(i + 5) % 96] + x[i];"
    body += "for (int i = 0; i < 96; i++) x[i] = v[i];"
    source.write_text(f'extern "C" __global__ void __launch_bounds__(1024, 2) k(float* x) {{ {body} }}')
    found = compiled(source, {}, TARGET)
    assert found["k"].spilled_bytes > 0
    assert found["k"].registers <= 65536 // 1024


def test_a_shape_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="needed: multiples of 64"):
        Shape(128, 64, 1).macros(grouped.LAUNCHES[TARGET], "mcg")
