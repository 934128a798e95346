"""Convolution, pooled keys, scores, selection and latent attention against float64 and plain loops."""

from __future__ import annotations

import pytest
import torch

from lockstep.kernels import indexer
from lockstep.kernels.causal_conv import causal_conv
from lockstep.kernels.latent_attention import attend, key_slots

torch.set_num_threads(1)


def test_convolution_weighs_the_rows_it_is_pointed_at_and_the_last_tap_is_the_row_itself() -> None:
    source, taps = torch.randn(20, 96), torch.randn(4, 96)
    index = torch.stack([torch.arange(first, first + 4) for first in range(8)])
    summed = torch.stack([source[index[:, tap]].double() * taps[tap].double() for tap in range(4)]).sum(0)
    assert torch.allclose(causal_conv(source, index, taps).double(), summed * torch.sigmoid(summed), atol=1e-5)


def test_a_pooled_key_is_the_softmax_weighed_sum_of_its_members() -> None:
    source, bias = torch.randn(12, 64), torch.randn(4, 32)
    index = torch.tensor([[0, 1, 2, 3], [4, 9, 6, 11]])
    for row, found in zip(index, indexer.pool_keys(source, index, bias), strict=True):
        key, gate = source[row].double().chunk(2, -1)
        assert torch.allclose(found.double(), (torch.softmax(gate + bias, 0) * key).sum(0), atol=1e-6)


def test_scores_have_the_formulas_values_and_do_not_depend_on_rows_or_pool_count() -> None:
    query, weight, keys = torch.randn(11, 8, 32), torch.randn(11, 8), torch.randn(1024, 32)
    wanted = (weight.double().unsqueeze(-1) * torch.einsum("nhd,pd->nhp", query.double(), keys.double()).relu()).sum(1)
    whole = indexer.scores(query, weight, keys)
    assert torch.allclose(whole.double(), wanted, atol=1e-4)
    assert torch.equal(indexer.scores(query[4:5], weight[4:5], keys[:512]), whole[4:5, :512])


def test_pools_off_the_block_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 512"):
        indexer.scores(torch.randn(1, 8, 32), torch.randn(1, 8), torch.randn(100, 32))


@pytest.mark.parametrize("seed", range(4))
def test_selection_is_the_sorted_prefix_by_value_then_index(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randint(-3, 4, (16, 512), generator=draw).float()  # many exact ties, as with every ReLU off
    candidates = torch.randint(64, 513, (16, 1), generator=draw)
    found = indexer.select(values, candidates, 64)
    for row in range(16):
        order = sorted(range(int(candidates[row])), key=lambda pool: (-values[row, pool].item(), pool))
        assert found[row].tolist() == sorted(order[:64])


def test_selection_of_a_row_does_not_depend_on_the_width_of_the_scores() -> None:
    values = torch.zeros(1, 1024)
    candidates = torch.tensor([[100]])
    assert indexer.select(values, candidates, 64).tolist() == [list(range(64))]
    assert torch.equal(indexer.select(values[:, :512], candidates, 64), indexer.select(values, candidates, 64))


def test_attention_has_the_formulas_values_and_ignores_unused_slots() -> None:
    width = key_slots(67)
    query, latents = torch.randn(5, 4, 64), torch.randn(300, 64)
    keys = torch.randint(0, 300, (5, width))
    bias = torch.zeros(5, 1, width)
    counts = [1, 5, 17, 33, 67]
    for row, count in enumerate(counts):
        bias[row, :, count:] = -torch.inf
    found = attend(query, latents, keys, bias, 0.25)
    for row, count in enumerate(counts):
        context = latents[keys[row, :count]].double()
        wanted = torch.softmax(query[row].double() @ context.T * 0.25, -1) @ context
        assert torch.allclose(found[row].double(), wanted, atol=1e-5)
        keys[row, count:] = 7
    assert torch.equal(attend(query, latents, keys, bias, 0.25), found)
    for row in range(5):
        alone = slice(row, row + 1)
        assert torch.equal(attend(query[alone], latents, keys[alone], bias[alone], 0.25), found[alone])


def test_a_key_list_off_the_alignment_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        attend(torch.randn(1, 4, 64), torch.randn(10, 64), torch.zeros(1, 67, dtype=torch.int64), torch.zeros(1, 1, 67), 1.0)
