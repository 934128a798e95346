"""Every launch of a CUDA kernel compiles for every card, within a block's shared memory of the smallest, and spills nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
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
from tuning.benches import DenseBench, ExpertsBench

TARGET = "sm_120"
CARDS = [TARGET, "sm_90"]
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


def part(form: str, inputs: int, outputs: int, heads: int = 1) -> RowMatrix:
    return RowMatrix(form, inputs, outputs, torch.empty(0), torch.empty(0), heads)


def dense(form: str) -> list[tuple[list[RowMatrix], bool]]:
    """What differs for the compiler: many outputs, few, few inputs, parts side by side, gate and up, heads."""
    alone = [[part(form, *shape)] for shape in ((4096, 12288), (4096, 2048), (1024, 4096), (256, 768))]
    joined = [part(form, 4096, 1536), part("fp8", 4096, 512), part("bf16", 4096, 288)]
    pairs = [([part(form, 4096, 12288)], True), (alone[1], True)]
    return [*((one, False) for one in alone), (joined, False), *pairs, ([part("bf16", 256, 16384, 32)], False)]


# Tiles of 8 rows: 1, 2, 3 and 4.
@pytest.mark.parametrize(("card", "count"), [*((TARGET, count) for count in (1, 9, 17, 32)), ("sm_90", 1), ("sm_90", 32)])
@pytest.mark.parametrize("form", rows.FORMS)
def test_dense_products_compile_for_every_card(form: str, card: str, count: int):
    for parts, paired in dense(form) if card == TARGET else (dense(form)[0], dense(form)[4]):
        macros = rows.macros(parts, count, card, paired)
        holds(compiled(rows.SOURCE, macros, card), {"rows_product", "encode"}, rows.shared_bytes(macros))


@pytest.fixture
def fake_target(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Benches compile as for the target; what they would load is noted."""
    loaded: list[str] = []
    monkeypatch.setattr(cuda, "target", lambda device: TARGET)
    monkeypatch.setattr(cuda, "load", lambda source, macros, device, shared: loaded.append(source.stem))
    return loaded


def test_every_launch_a_table_may_choose_compiles_and_none_that_spills_is_tried(fake_target: list[str]):
    device = torch.device("cpu")
    told = rows.macros([part("bf16", 1024, 512)], 32, TARGET)
    case = tuple(value for name, value in told.items() if name not in rows.KERNEL.space)
    products, experts = DenseBench(rows.KERNEL, case, device, [1]), object.__new__(ExpertsBench)
    experts.device, experts._codebook, experts._shape = device, "mcg", SHAPES[0]
    refused = 0
    for bench, space in ((products, rows.KERNEL.space), (experts, {**grouped.KERNEL.space, "overlap": (1,)})):
        for values in itertools.product(*space.values()):
            point = dict(zip(space, values, strict=True))
            if bench.allowed(point):
                begun = len(fake_target)
                why = bench.compile(point)
                assert len(fake_target) == begun + (not why)
                assert not why or why.startswith("spills ")
                refused += bool(why)
    assert refused, "a bench tells what the compiler had no registers for"
    assert set(fake_target) == {"rows", "grouped"}


def test_a_table_may_not_choose_more_stages_than_a_ring_has():
    """Stages are a power of two, so that a place in the ring is found by a mask."""
    for stages in grouped.KERNEL.space["stages"]:
        compiled(grouped.SOURCE, SHAPES[0].macros(replace(grouped.LAUNCHES[TARGET], stages=stages), "mcg"), TARGET)
    with pytest.raises(cuda.CompileError, match="a ring reaches into the next unit only"):
        compiled(grouped.SOURCE, SHAPES[0].macros(replace(grouped.LAUNCHES[TARGET], stages=3), "mcg"), TARGET)


@pytest.mark.parametrize("card", CARDS)
def test_kernels_between_the_products_compile_for_every_card(card: str):
    for heads, width in ((32, 128), (64, 128), (4, 64), (4, 32)):
        macros = chain.macros(heads, width, 3 * heads * width + 2 * width + heads)
        holds(compiled(chain.SOURCE, macros, card), {"window", "commit"})
    for sizes in ((4096, 288, 8), (256, 16, 2)):
        holds(compiled(choose.SOURCE, choose.macros(*sizes), card), {"logits", "choose"})
    for hidden in (4096, 256):
        holds(compiled(sites.SOURCE, {"HIDDEN": hidden}, card), {"begin", "mix", "merge"})
    for width in (64, 128, 256, 512, 1536, 4096):
        for gated in (False, True):
            holds(compiled(norms.SOURCE, norms.macros(width, gated), card), {"row_norm"})


@pytest.mark.parametrize("card", CARDS)
def test_the_sampler_compiles_for_every_card(card: str):
    for vocabulary, kind in ((154880, torch.bfloat16), (2276, torch.float32)):
        holds(compiled(sampling.SOURCE, sampling.macros(vocabulary, kind), card), {"sample"})


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("coded", [False, True])
def test_attention_over_pages_compiles_for_every_card(coded: bool, card: str):
    none = torch.empty(0)
    norms = lambda query, latent, key: attention.Norms(torch.empty(query), torch.empty(latent), torch.empty(key), none, none, 1e-5)  # noqa: E731
    real = norms(1536, 512, 128)
    # For sm_90 the compiler keeps some words of the embedded shapes, and of `score`, on a thread's stack.
    embedded = ((norms(64, 64, 32), 4, 8, 64),) if card == TARGET else ()
    for own, heads, index_heads, pools in ((real, 32, 32, 512), (real, 64, 32, 512), *embedded):
        macros = attention.macros(own, index_heads, heads, pools, coded)
        found = compiled(attention.SOURCE, macros, card)
        holds(found, {"prepare", "attend", "join", "commit"})
        assert attention.shared_bytes(macros) <= MOST_SHARED_BYTES
        if card != TARGET:
            continue
        key = len(own.key)
        places = (heads * 256 + index_heads * key, heads * 256, macros["PITCH"], macros["PITCH"] - key - index_heads)
        holds(compiled(indexing.SOURCE, indexing.macros(index_heads, key, pools, *places, coded), card), {"score", "select"})


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
