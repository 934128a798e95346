"""The EXL3 encoder finds the paths of the plain codec, for every codebook and width, and whole matrices survive it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from checkpoints.exl3_encode import encode_matrix, encode_tiles, pack_states
from fixtures import exl3_oracle as oracle
from lockstep.kernels.exl3 import CODEBOOKS, WIDTHS, decode_outer
from lockstep.kernels.exl3.ref import codebook, unpack_states

torch.set_num_threads(1)
COMBINATIONS = [(bits, name) for bits in WIDTHS for name in CODEBOOKS if bits % 1 == 0 or name == "mul1"]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("bits", "name"), COMBINATIONS)
def test_a_tile_closes_packs_and_costs_no_more_than_in_the_plain_codec(bits: float, name: str) -> None:
    tiles = normal(1, 256, seed=int(bits * 10)) * 1.2
    states = encode_tiles(tiles, bits, name)
    assert oracle.closed(states.numpy(), bits)
    assert torch.equal(unpack_states(pack_states(states, bits)), states)
    plain = torch.from_numpy(oracle.encode_tiles(tiles.numpy(), bits, name).astype(np.int64))
    cost, plain_cost = ((codebook(name)[found].double() - tiles).square().mean().item() for found in (states, plain))
    assert cost <= plain_cost * (1 + 1e-6)


def test_tiles_do_not_depend_on_their_neighbours_in_the_batch() -> None:
    tiles = normal(5, 256)
    together = encode_tiles(tiles, 4, "mcg")
    alone = torch.cat([encode_tiles(tile[None], 4, "mcg") for tile in tiles])
    assert torch.equal(together, alone)


@pytest.mark.parametrize(("bits", "name", "bound"), [(4, "mcg", 0.075), (2, "mul1", 0.29), (3.5, "mul1", 0.115)])
def test_a_matrix_survives_encoding_up_to_its_rate(bits: float, name: str, bound: float) -> None:
    weight = normal(128, 128) * 0.05
    matrix = encode_matrix(weight, bits, name, torch.Generator().manual_seed(1))
    assert (matrix.bits, matrix.codebook, matrix.k, matrix.n) == (bits, name, 128, 128)
    rebuilt = decode_outer(matrix.trellis, matrix.suh, matrix.svh, name)
    assert ((rebuilt - weight).norm() / weight.norm()).item() < bound
    assert torch.allclose(
        rebuilt, torch.from_numpy(oracle.decode_outer(matrix.trellis.numpy(), matrix.suh.numpy(), matrix.svh.numpy(), name)), atol=1e-12
    )


def test_a_row_of_zeros_and_a_huge_row_stay_finite() -> None:
    weight = normal(128, 128) * 0.05
    weight[3] = 0
    weight[4] *= 1000
    matrix = encode_matrix(weight, 2, "mcg", torch.Generator().manual_seed(1))
    rebuilt = decode_outer(matrix.trellis, matrix.suh, matrix.svh, "mcg")
    assert bool(torch.isfinite(rebuilt).all())
    assert rebuilt[3].abs().max() < 1e-3


def test_the_same_generator_gives_the_same_bits_and_another_other_signs() -> None:
    weight = normal(128, 128)
    first, again, other = (encode_matrix(weight, 8, "mcg", torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.trellis, again.trellis)
    assert torch.equal(first.suh, again.suh)
    assert not torch.equal(first.suh, other.suh)


def test_sides_that_are_no_multiple_of_128_are_refused() -> None:
    with pytest.raises(ValueError, match="found 128 x 96, EXL3 needs multiples of 128"):
        encode_matrix(torch.zeros(128, 96), 4, "mcg", torch.Generator())


@pytest.mark.gpu
def test_the_gpu_finds_paths_as_good_as_the_cpu() -> None:
    tiles = normal(64, 256)
    gpu = encode_tiles(tiles.cuda(), 4, "mcg").cpu()
    assert oracle.closed(gpu.numpy(), 4)
    costs = [(codebook("mcg")[found].double() - tiles).square().mean().item() for found in (gpu, encode_tiles(tiles, 4, "mcg"))]
    assert costs[0] == pytest.approx(costs[1], rel=1e-4)
