"""What CUDA kernels compute, against float64, without a GPU: translated for the CPU, in the form for cards whose products are mma.sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fixtures import cuda_attention as attention
from fixtures import cuda_products as products
from fixtures.cuda_bench import Bench
from fixtures.cuda_model import Memory, slices_and_steps_change_no_bit
from fixtures.draw_cases import MODES, plain, request, shapes
from fixtures.host_cuda import standing_in, standing_in_for_models
from lockstep.kernels.linear import rows
from lockstep.run.draws import Draws
from tuning.benches import DenseBench

pytestmark = pytest.mark.compiler
torch.set_num_threads(1)
Check = Callable[[Bench], None]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with standing_in(tmp_path_factory.mktemp("kernels"), "sm_120"):
        yield Bench("cpu")


CHECKS: dict[str, Check] = {
    "norms, a warp a row": lambda bench: products.root_mean_square(bench, 64),
    "norms, a block a row": lambda bench: products.root_mean_square(bench, 1024),
    "streams of a step": lambda bench: products.streams_into_and_out_of_branches(bench, 256, 8),
    "streams of a prompt": lambda bench: products.streams_into_and_out_of_branches(bench, 256, 74),
    "bf16 products": lambda bench: products.dense_products(bench, "bf16", 256, 64),
    "fp8 products": lambda bench: products.dense_products(bench, "fp8", 256, 64),
    "q4 products of many inputs": lambda bench: products.dense_products(bench, "q4", 2048, 32),
    "products side by side": lambda bench: products.products_side_by_side(bench, "q4"),
    "products of heads": products.products_of_heads,
    "rows as e4m3": products.rows_as_e4m3,
    "activations of many rows": products.activations_of_many_rows,
    "fp8 products of a prompt": lambda bench: products.products_of_many_rows(bench, "fp8", 64, 48),
    "q4 products of a prompt": lambda bench: products.products_of_many_rows(bench, "q4", 128, 32),
    "choice of experts": lambda bench: products.choice_of_experts(bench, 256, 16, 2),
    "choice of experts, wide": lambda bench: products.choice_of_experts(bench, 1024, 48, 8),
    "experts of a step": lambda bench: products.experts_of_a_step(bench, 256, 128),
    "experts of a prompt": lambda bench: products.experts_of_a_prompt(bench, 256, 128),
    "delta rule of windows": lambda bench: attention.delta_rule_of_windows(bench, 4, 32),
    "delta rule of windows, wide": lambda bench: attention.delta_rule_of_windows(bench, 1, 128),
    "delta rule of prompts": lambda bench: attention.delta_rule_of_prompts(bench, 2, 32, 150),
    "delta rule of prompts, wide": lambda bench: attention.delta_rule_of_prompts(bench, 1, 128, 100),
    "what a step stores": lambda bench: attention.what_a_step_stores(bench, (64, 64, 32), 8, False),
    "what a step stores, coded": lambda bench: attention.what_a_step_stores(bench, (320, 128, 64), 8, True),
    "attention of a step": lambda bench: attention.attention_of_a_step(bench, 4, 64, 64, False),
    "attention of a step, coded": lambda bench: attention.attention_of_a_step(bench, 32, 128, 64, True),
    "attention of a prompt": lambda bench: attention.attention_of_a_prompt(bench, 4, 64, 64, False),
    "attention of a prompt, coded": lambda bench: attention.attention_of_a_prompt(bench, 32, 128, 64, True),
    "pools of a prompt": lambda bench: attention.pools_of_a_prompt(bench, 8, 32, 64, False),
    "pools of a prompt, coded": lambda bench: attention.pools_of_a_prompt(bench, 16, 64, 64, True),
    "pools of a step": lambda bench: attention.pools_of_a_step(bench, 600, False),
    "pools of a step, coded": lambda bench: attention.pools_of_a_step(bench, 600, True),
}


@pytest.mark.parametrize("name", CHECKS)
def test_values_and_rows_that_do_not_see_each_other(bench: Bench, name: str):
    CHECKS[name](bench)


def test_the_sampler_draws_the_ids_of_the_plain_one(bench: Bench):
    vocabulary, width = 600, 608
    draws, kinds = Draws(vocabulary, 16, bench.device), list(shapes(vocabulary, width).values())
    logits = torch.stack([kinds[at % len(kinds)] for at in range(len(MODES))]).bfloat16()
    asked = [request(how, 7 * at, vocabulary) for at, how in enumerate(MODES.values())]
    draws.ask(asked)
    draws.sampler.launch(logits)
    whole = draws.read()
    assert whole == [plain(row, one, vocabulary) for row, one in zip(logits, asked, strict=True)]
    part = slice(3, 8)
    draws.ask(asked[part])
    draws.sampler.launch(logits[part].contiguous())
    assert draws.read() == whole[part]


def test_a_launch_that_a_step_asked_for_is_the_one_that_is_searched(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Heads of a wider row among them, and a row alone, of which torch says any stride."""
    monkeypatch.setattr(rows.KERNEL, "asked", {})
    packed = replace(rows.pack_bf16(bench.draw(4 * 32, 64)), heads=4)
    wide = bench.draw(8, 6 * 64).unflatten(1, (6, 64))[:, :4]
    alone = torch.empty_like(wide[:1].as_strided((1, 4, 64), (64, 64, 1)))
    for x in (wide, wide[:1], alone):
        rows.linear(x, packed)
    asked = dict(rows.KERNEL.asked)
    assert len(asked) == 2
    for case, default in asked.items():
        search = DenseBench(rows.KERNEL, case, torch.device(bench.device), [1])
        assert not search.run(default, 1, search.rows[1]).isnan().any()
    assert rows.KERNEL.asked == asked


def test_slices_and_steps_of_a_model_change_no_bit(tmp_path: Path):
    plain = Memory(Bench("cpu"), "fp8").prompt(4096)
    with standing_in_for_models(tmp_path, "sm_120"):
        slices_and_steps_change_no_bit(Bench("cpu"), "fp8", plain)
