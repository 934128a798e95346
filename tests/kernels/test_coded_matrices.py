"""e4m3 rows and 4-bit groups against definitions written out in plain Python, value by value."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from lockstep.kernels import fp8
from lockstep.kernels.coded import GROUP, Fp8Matrix, Q4Matrix, encode_fp8, encode_q4

torch.set_num_threads(1)


def e4m3_values() -> list[float]:
    """All finite values that are not negative, by code: 3 bits of mantissa, exponent bias 7, code 127 is no number."""
    values = []
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        values.append(math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10))
    return values


VALUES = e4m3_values()


def nearest(value: float) -> float:
    """The nearest e4m3 value; of two equally near ones that with an even code."""
    size = Fraction(abs(value))
    best = min(range(127), key=lambda code: (abs(Fraction(VALUES[code]) - size), code % 2))
    return math.copysign(VALUES[best], value)


def oracle_row(row: list[float]) -> tuple[list[float], int]:
    """Codes as values and the exponent."""
    largest = max(map(abs, row))
    exponent = -126 if largest else -9
    while largest > 448 * 2.0**exponent:
        exponent += 1
    return [nearest(math.ldexp(value, -exponent)) for value in row], exponent


def rows() -> list[list[float]]:
    draws = torch.randn(12, 40, generator=torch.Generator().manual_seed(2)) * torch.tensor([2.0**p for p in range(-30, 30, 5)]).unsqueeze(1)
    edges = [
        [0.0] * 8, [448.0, -448.0, 1.0, -1.0], [448.00003, 3.0], [449.0, 0.0], [1e-38, -2e-39], [3e38, 1.0], [-7.0, 0.4375, 27.0, 26.0],
        [448.0, *(VALUES[code] + VALUES[code + 1] for code in range(40))],
    ]  # fmt: skip
    return [*draws.tolist(), *edges]


@pytest.mark.parametrize("row", rows())
def test_a_row_has_the_smallest_exponent_and_the_nearest_codes(row: list[float]):
    x = torch.tensor(row)
    codes, exponents = fp8.encode(x.unsqueeze(0))
    wanted, exponent = oracle_row(x.tolist())
    assert int(exponents) == exponent
    assert codes[0].double().tolist() == wanted
    assert fp8.decode(codes, exponents, torch.float32)[0].tolist() == [value * 2.0**exponent for value in wanted]


def test_decoded_rows_are_exact_in_bf16_and_rounding_them_again_changes_nothing():
    x = torch.randn(64, 48) * 5
    once = fp8.rounded(x)
    assert torch.equal(once.bfloat16().float(), once)
    assert torch.equal(fp8.rounded(once), once)
    assert torch.equal(fp8.rounded(x.bfloat16()).float(), fp8.rounded(x.bfloat16().float()))


def test_a_row_is_coded_by_itself():
    x = torch.randn(33, 48) * torch.logspace(-6, 6, 33).unsqueeze(1)
    whole = fp8.rounded(x)
    assert all(torch.equal(fp8.rounded(x[at : at + 1])[0], whole[at]) for at in range(len(x)))


def test_rows_with_no_number_stay_no_number():
    assert bool(fp8.rounded(torch.tensor([[math.nan, 1.0]])).isnan().any())
    assert fp8.rounded(torch.tensor([[-math.inf, 1.0], [2.0, 1.0]])).isnan().tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_store_of_rows_gives_back_coded_rows_at_any_place(dtype: torch.dtype):
    rows, places = torch.randn(5, 32).to(dtype), torch.tensor([6, 1, 3, 0, 9])
    store = fp8.row_store((10,), 32, "cpu")
    assert store.shape == (10, 48)
    fp8.write(store, places, rows)
    assert torch.equal(fp8.read(store, places, dtype), fp8.rounded(rows))
    untouched = fp8.read(store, torch.tensor([2, 4]), dtype)
    assert untouched.dtype == dtype
    assert not bool(untouched.any())
    plain = torch.zeros(10, 32, dtype=dtype)
    fp8.write(plain, places, rows)
    assert torch.equal(fp8.read(plain, places, dtype), rows)


def oracle_group(group: list[float]) -> tuple[list[int], float]:
    """Values and factor of one group, by trying every factor."""
    largest, best = max(map(abs, group)), (math.inf, [0] * GROUP, 0.0)
    for divisor in [7 + step / 2 for step in range(8)] + [-8 - step / 2 for step in range(8)]:
        factor = float((torch.tensor(largest) / divisor).half())
        step = factor or 1.0
        values = [min(7, max(-8, round(float(torch.tensor(value) / step)))) for value in group]
        error = math.fsum((value * factor - weight) ** 2 for value, weight in zip(values, group, strict=True))
        if error < best[0]:
            best = (error, values, factor)
    return best[1], best[2]


def test_a_4_bit_group_has_the_factor_with_the_smallest_error():
    weight = torch.randn(6, 2 * GROUP, generator=torch.Generator().manual_seed(4)) * 0.05
    weight[0, :GROUP] = 0
    weight[1, 3] = 4.0
    weight[2] *= 1e-9
    weight[3] = torch.where(weight[3] > 0, 0.02, -0.02)
    decoded = encode_q4(weight).decoded()
    for row in range(6):
        for at in (0, GROUP):
            values, factor = oracle_group(weight[row, at : at + GROUP].tolist())
            assert decoded[row, at : at + GROUP].tolist() == [value * factor for value in values], (row, at)


def test_4_bit_codes_lie_two_in_a_byte_low_half_first():
    weight = (torch.arange(GROUP) % 16 - 8).float().unsqueeze(0)
    matrix = encode_q4(weight)
    assert torch.equal(matrix.decoded(), weight)
    assert matrix.factors.tolist() == [[1.0]]
    assert matrix.codes[0, :3].tolist() == [0 | 1 << 4, 2 | 3 << 4, 4 | 5 << 4]


def test_errors_are_those_of_the_bits_spent():
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(6))

    def error(matrix: Fp8Matrix | Q4Matrix) -> float:
        return float((matrix.decoded() - weight).square().mean().sqrt())

    assert 0.02 < error(encode_fp8(weight)) < 0.03
    assert 0.07 < error(encode_q4(weight)) < 0.1


@pytest.mark.parametrize("encode", [encode_fp8, encode_q4])
def test_a_part_of_a_coded_matrix_is_a_part_of_the_decoded_one(encode):
    matrix = encode(torch.randn(6, 4 * GROUP))
    assert torch.equal(matrix.outputs(2, 3).decoded(), matrix.decoded()[2:5])
    assert torch.equal(matrix.inputs(GROUP, 2 * GROUP).decoded(), matrix.decoded()[:, GROUP : 3 * GROUP])


def test_what_does_not_fit_groups_of_64_is_refused():
    with pytest.raises(ValueError, match="96 inputs; needed: a multiple of 64 for q4"):
        encode_q4(torch.zeros(2, 96))
    with pytest.raises(ValueError, match="inputs 32 to 64 of a q4 matrix; needed: multiples of 64"):
        encode_q4(torch.zeros(2, 128)).inputs(32, 32)
