"""Every CUDA kernel against float64 at the real shapes of one rank of two and at those of the embedded checkpoint: 1 to 32 rows in any
company, at any place, run again and from a graph; slices of prompts cut otherwise. The sampler has a file of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fixtures import cuda_attention as attention
from fixtures import cuda_products as products
from fixtures.cuda_bench import Bench
from lockstep.kernels.exl3 import CODEBOOKS

pytestmark = pytest.mark.gpu


@pytest.fixture
def bench() -> Iterator[Bench]:
    with torch.inference_mode():
        yield Bench("cuda")


@pytest.mark.parametrize("width", [32, 64, 128, 256, 512, 1536, 4096])
def test_norms(bench: Bench, width: int):
    products.root_mean_square(bench, width)


@pytest.mark.parametrize("count", [32, 74, 320])
@pytest.mark.parametrize("width", [256, 4096])
def test_streams_into_and_out_of_branches(bench: Bench, width: int, count: int):
    products.streams_into_and_out_of_branches(bench, width, count)


# Few outputs and many inputs, many outputs, neither.
@pytest.mark.parametrize(("inputs", "outputs"), [(4096, 2336), (4096, 12576), (1024, 4096), (256, 64)])
@pytest.mark.parametrize("form", ["bf16", "fp8", "q4"])
def test_dense_products(bench: Bench, form: str, inputs: int, outputs: int):
    products.dense_products(bench, form, inputs, outputs)


@pytest.mark.parametrize("form", ["bf16", "fp8", "q4"])
def test_products_side_by_side(bench: Bench, form: str):
    products.products_side_by_side(bench, form)


def test_products_of_heads(bench: Bench):
    products.products_of_heads(bench)
    products.heads_of_many_rows(bench)


def test_rows_as_e4m3(bench: Bench):
    products.rows_as_e4m3(bench)


def test_activations_of_many_rows(bench: Bench):
    products.activations_of_many_rows(bench)


@pytest.mark.parametrize(("inputs", "outputs"), [(4096, 2336), (1024, 4096), (256, 64)])
@pytest.mark.parametrize("form", ["bf16", "fp8", "q4"])
def test_products_of_many_rows(bench: Bench, form: str, inputs: int, outputs: int):
    products.products_of_many_rows(bench, form, inputs, outputs)


@pytest.mark.parametrize(("inputs", "experts", "slots"), [(4096, 288, 8), (256, 16, 2)])
def test_choice_of_experts(bench: Bench, inputs: int, experts: int, slots: int):
    products.choice_of_experts(bench, inputs, experts, slots)
    products.logits_of_many_rows(bench, inputs, experts)


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize(("hidden", "width"), [(4096, 1024), (256, 128)])
def test_experts(bench: Bench, hidden: int, width: int, codebook: str):
    products.experts_of_a_step(bench, hidden, width, codebook)
    products.experts_of_a_prompt(bench, hidden, width, codebook)


@pytest.mark.parametrize(("heads", "width"), [(32, 128), (4, 64), (4, 32)])
def test_the_delta_rule(bench: Bench, heads: int, width: int):
    attention.delta_rule_of_windows(bench, heads, width)
    attention.delta_rule_of_prompts(bench, heads, width, 303)


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize(("sizes", "index_heads"), [((1536, 512, 128), 32), ((64, 64, 32), 8)])
def test_what_a_step_stores(bench: Bench, sizes: tuple[int, int, int], index_heads: int, coded: bool):
    attention.what_a_step_stores(bench, sizes, index_heads, coded)


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize(("heads", "latent", "pools"), [(32, 512, 512), (64, 512, 512), (4, 64, 64)])
def test_attention_over_pages(bench: Bench, heads: int, latent: int, pools: int, coded: bool):
    attention.attention_of_a_step(bench, heads, latent, pools, coded)
    attention.attention_of_a_prompt(bench, heads, latent, pools, coded)


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize(("heads", "width", "pools"), [(32, 128, 512), (8, 32, 64)])
def test_pools_of_a_prompt(bench: Bench, heads: int, width: int, pools: int, coded: bool):
    attention.pools_of_a_prompt(bench, heads, width, pools, coded)


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("length", [600, 5000, 40000])
def test_pools_of_a_step(bench: Bench, length: int, coded: bool):
    attention.pools_of_a_step(bench, length, coded)
