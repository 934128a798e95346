"""Products in row tiles: values, independence of rows, and that the check notices a library that is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.kernels import host
from lockstep.kernels.linear import PROMPT_ROWS, STEP_ROWS, Packed, batched, linear, many, pack, ref

torch.set_num_threads(1)
COUNTS = [8, 16, 24, 32, 64]


@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("shape", [(452, 256), (24, 1024), (100, 48), (3, 40, 32)])
def test_values_are_those_of_float64(rows: int, shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x = torch.randn(rows, *shape[:-2], shape[-1])
    equation = "rk,nk->rn" if len(shape) == 2 else "rhk,hnk->rhn"
    wanted = torch.einsum(equation, x.double(), weight.double())
    assert torch.allclose(linear(x, pack(weight)).double(), wanted, atol=1e-4)


@pytest.mark.parametrize("shape", [(452, 256), (24, 1024), (100, 48), (16, 256), (3, 40, 32)])
def test_a_rows_bits_are_the_same_at_every_count_and_place(shape: tuple[int, ...]) -> None:
    packed = pack(torch.randn(shape))
    row = torch.randn(*shape[:-2], shape[-1])
    seen = set()
    for rows in COUNTS[:-1]:
        for place in {0, 1, rows // 2, rows - 1}:
            x = torch.randn(rows, *row.shape) * 100
            x[place] = row
            seen.add(linear(x, packed)[place].numpy().tobytes())
    assert len(seen) == 1


def test_the_check_notices_rows_that_depend_on_their_place_or_neighbours() -> None:
    x, weight = torch.randn(8, 32), torch.randn(32, 16)
    place = torch.arange(8.0).unsqueeze(1) * 1e-3
    assert ref.rows_are_independent(ref.linear, x, weight)
    assert not ref.rows_are_independent(lambda x, w, t: x @ w + place, x, weight)
    assert not ref.rows_are_independent(lambda x, w, t: x @ w + x.mean(), x, weight)


def test_a_dependent_library_is_called_one_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def dependent(x: Tensor, weight: Tensor, tile: int) -> Tensor:
        calls.append(tile)
        return x @ weight + (x.mean() if tile > 1 else 0)

    monkeypatch.setattr(ref, "linear", dependent)
    ref._safe_tiles.cache_clear()
    try:
        packed = pack(torch.randn(16, 32))
    finally:
        ref._safe_tiles.cache_clear()
    assert packed.tiles == dict.fromkeys([PROMPT_ROWS, *range(STEP_ROWS, 33, STEP_ROWS)], 1)
    assert len(calls) > 1


def test_one_row_at_a_time_gives_the_same_values() -> None:
    x, packed = torch.randn(24, 32), pack(torch.randn(16, 32))
    single = Packed(packed.weight, dict.fromkeys(COUNTS, 1))
    assert torch.allclose(linear(x, single), linear(x, packed), atol=1e-5)


@pytest.mark.parametrize("shape", [(452, 256), (3, 40, 32)])
@pytest.mark.parametrize("rows", [1, 7, 9, 31])
def test_rows_that_fill_no_tile_have_the_bits_they_have_in_one(shape: tuple[int, ...], rows: int) -> None:
    packed, x = pack(torch.randn(shape)), torch.randn(32, *shape[:-2], shape[-1])
    linear(torch.full_like(x, 1e30), packed)
    assert torch.equal(linear(x[:rows], packed), linear(x, packed)[:rows])


@pytest.mark.parametrize("rows", [0, 33, 63, 65])
def test_a_row_count_of_neither_path_is_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows; needed: 1 to 32, or one prompt tile of 64"):
        linear(torch.randn(rows, 32), pack(torch.randn(16, 32)))


@pytest.mark.parametrize("count", [1, 2, 5, 31, 64, 70])
def test_a_batched_product_does_not_depend_on_the_batch(count: int) -> None:
    a, b = torch.randn(70, 4, 64), torch.randn(70, 288, 64).transpose(1, 2)
    whole = batched(a, b)
    assert torch.equal(batched(a[:count], b[:count]), whole[:count])
    assert torch.allclose(whole.double(), a.double() @ b.double(), atol=1e-4)


def test_a_batch_that_matters_is_run_one_product_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = torch.bmm, []

    def dependent(a: Tensor, b: Tensor) -> Tensor:
        calls.append(len(a))
        return plain(a, b) * (1 + 1e-3 * (len(a) > 1))

    monkeypatch.setattr(torch, "bmm", dependent)
    ref._batch_is_free.cache_clear()
    try:
        a, b = torch.randn(5, 4, 64), torch.randn(5, 64, 32)
        batched(a, b)
        calls.clear()
        found = batched(a, b)
    finally:
        ref._batch_is_free.cache_clear()
    assert calls == [1] * 5
    assert torch.equal(found[3:4], plain(a[3:4], b[3:4]))


def test_the_check_of_host_arithmetic_notices_rows_that_depend_on_their_company() -> None:
    rows = torch.randn(32, 24).numpy()
    assert host.rows_are_independent(host.softmax, rows)
    assert not host.rows_are_independent(lambda x: host.softmax(x) * (1 + 1e-3 * len(x)), rows)
    assert not host.rows_are_independent(lambda x: x - x.mean(), rows)


def test_an_fp32_matrix_is_the_sum_of_few_bf16_ones():
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(1))
    for given, count in ((weight, 3), (weight.bfloat16().float(), 1)):
        found = many.pieces(given)
        assert found.shape == (1, 128, 6 * count)
        assert torch.equal(torch.stack(found[0].float().split(6, 1)).sum(0), given.T)
