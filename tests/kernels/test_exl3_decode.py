"""EXL3 decoding, rotation and packing have the bits of the plain codec, for every codebook and width."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from checkpoints.exl3_encode import pack_states, to_tiles
from fixtures import exl3_oracle as oracle
from lockstep.kernels import exl3
from lockstep.kernels.exl3 import ref

torch.set_num_threads(1)

# First 16 hex digits of the SHA-256 of the decoded inner weight of known words, as computed by the format's own kernels.
DIGESTS = {
    (1.0, "3inst"): "cac31abaf2ec9b83",
    (1.0, "mcg"): "f7727d5f443b8b18",
    (1.0, "mul1"): "d3aa401bbb089dbd",
    (1.5, "mul1"): "32678d3ca17ce0cc",
    (2.0, "3inst"): "4aff91c747f7e2b9",
    (2.0, "mcg"): "e6215ad727f08f0d",
    (2.0, "mul1"): "f458df673cca534a",
    (2.5, "mul1"): "26bd1e8bcc0c9d84",
    (3.0, "3inst"): "828059b27be71cb6",
    (3.0, "mcg"): "15928c93869abe34",
    (3.0, "mul1"): "4d8b94eb16fad8e7",
    (3.5, "mul1"): "f122b327b683c749",
    (4.0, "3inst"): "f21aaed5e3dbe669",
    (4.0, "mcg"): "e23b3ebb017e5916",
    (4.0, "mul1"): "453f87f00c2935c5",
    (5.0, "3inst"): "0324ce0e99455130",
    (5.0, "mcg"): "6b5a3c70bae68ea2",
    (5.0, "mul1"): "8b2d81375a701664",
    (6.0, "3inst"): "9c8c6ddd187d8749",
    (6.0, "mcg"): "ea24925839374687",
    (6.0, "mul1"): "5a75fe904f315a42",
    (7.0, "3inst"): "27c3f7f6a5681567",
    (7.0, "mcg"): "6525efc9ba989281",
    (7.0, "mul1"): "ccc13d1bd7cf6628",
    (8.0, "3inst"): "4647b0fbb9853d1c",
    (8.0, "mcg"): "52f2e6f76a5c60f5",
    (8.0, "mul1"): "0eee1e6f866b8654",
}
CODEBOOK_DIGESTS = {"3inst": "ad88de2dcff5bb05", "mcg": "95383563929baa9d", "mul1": "bc48d02cb1c14939"}


def known_words(bits: float) -> np.ndarray:
    count = 8 * 16 * int(16 * bits)
    mixed = (np.arange(count, dtype=np.uint64) * 2654435761 + 12345) & 0xFFFFFFFF
    return (mixed >> 16).astype(np.uint16).view(np.int16).reshape(8, 16, -1)


def random_words(bits: float, k: int, n: int) -> np.ndarray:
    dice = np.random.default_rng(int(bits * 10))
    return dice.integers(-32768, 32768, (k // 16, n // 16, int(16 * bits)), dtype=np.int64).astype(np.int16)


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("name", exl3.CODEBOOKS)
def test_codebook_tables_have_the_published_bits(name: str) -> None:
    table = ref.codebook(name).numpy()
    assert digest(table) == CODEBOOK_DIGESTS[name]
    assert np.array_equal(table.view(np.int16), oracle.codebook(name).view(np.int16))


def test_all_27_combinations_are_covered() -> None:
    assert set(DIGESTS) == {(bits, name) for bits in exl3.WIDTHS for name in exl3.CODEBOOKS if bits % 1 == 0 or name == "mul1"}


@pytest.mark.parametrize(("bits", "name"), DIGESTS)
def test_the_inner_weight_has_the_published_bits(bits: float, name: str) -> None:
    assert digest(exl3.ref.decode_inner(torch.from_numpy(known_words(bits)), name).numpy()) == DIGESTS[bits, name]


@pytest.mark.parametrize(("bits", "name"), DIGESTS)
def test_the_inner_weight_of_random_words_equals_the_plain_codec(bits: float, name: str) -> None:
    words = random_words(bits, 128, 384)
    mine = exl3.ref.decode_inner(torch.from_numpy(words), name).numpy()
    assert np.array_equal(mine.view(np.int16), oracle.decode_inner(words, name).view(np.int16))


@pytest.mark.parametrize("bits", exl3.WIDTHS)
def test_states_unpack_as_in_the_plain_codec_and_pack_back(bits: float) -> None:
    words = random_words(bits, 32, 48)
    states = ref.unpack_states(torch.from_numpy(words))
    assert np.array_equal(states.numpy(), oracle.unpack_states(words))
    assert np.array_equal(pack_states(states, bits).numpy(), words)


def test_tiles_cut_and_join_without_change() -> None:
    weight = torch.arange(32 * 48).view(32, 48)
    tiles = to_tiles(weight)
    assert np.array_equal(tiles.numpy(), oracle.to_tiles(weight.numpy()))
    assert torch.equal(ref.from_tiles(tiles), weight)


def test_the_input_rotation_has_the_bits_of_the_plain_codec() -> None:
    dice = np.random.default_rng(5)
    x = (dice.standard_normal((3, 256)) * 4).astype(np.float16)
    suh = (dice.standard_normal(256) * 0.05).astype(np.float16)
    mine = exl3.rotate_input(torch.from_numpy(x), torch.from_numpy(suh))
    assert mine.dtype == torch.float16
    assert np.array_equal(mine.numpy().view(np.int16), oracle.rotate_input_fp16(x, suh).view(np.int16))
    wide = torch.from_numpy(x.astype(np.float32) * 1.0001)
    assert np.array_equal(exl3.rotate_input(wide, torch.from_numpy(suh)).numpy(), oracle.rotate_input_fp16(wide.numpy(), suh))


def test_the_output_rotation_has_the_bits_of_the_plain_codec() -> None:
    dice = np.random.default_rng(6)
    z = dice.standard_normal((3, 384)).astype(np.float32)
    svh = dice.standard_normal(384).astype(np.float16)
    mine = exl3.rotate_output(torch.from_numpy(z), torch.from_numpy(svh)).numpy()
    assert np.array_equal(mine.view(np.int32), oracle.rotate_output(z, svh).view(np.int32))


def test_known_values_of_one_four_bit_matrix() -> None:
    trellis = torch.from_numpy(known_words(4))
    i, j = torch.arange(128), torch.arange(256)
    suh, svh = (((i % 7) - 3) / 8 + 1 / 16).half(), (((j % 5) - 2) / 4 + 1 / 8).half()
    inner = exl3.ref.decode_inner(trellis, "mcg").float()
    assert torch.allclose(inner[0, :4], torch.tensor([-1.418, 0.0293, -2.387, 1.131]), rtol=1e-3)
    assert torch.allclose(inner[:4, 0], torch.tensor([-1.418, 2.398, 0.9404, 1.287]), rtol=1e-3)
    outer = exl3.decode_outer(trellis, suh, svh, "mcg")
    assert torch.allclose(outer[0, :3], torch.tensor([-0.25622897, 0.02684131, -0.02876155], dtype=torch.float64), rtol=1e-6)
    x = (((torch.arange(256) % 13) - 6) / 4).view(2, 128).half()
    rotated = exl3.rotate_input(x, suh)
    assert digest(rotated.numpy()) == "6066c4d6839466e0"
    y = exl3.rotate_output((rotated.double() @ inner.double()).float(), svh)
    assert torch.allclose(y[0, :3], torch.tensor([-0.40153569, 0.77981079, -0.23380035]), rtol=1e-5)


GOOD = {
    "trellis": torch.zeros(8, 16, 64, dtype=torch.int16),
    "suh": torch.zeros(128, dtype=torch.float16),
    "svh": torch.zeros(256, dtype=torch.float16),
    "codebook": "mcg",
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trellis": GOOD["trellis"].int()}, "found torch.int32 with 3 axes, needed int16 with 3"),
        ({"trellis": GOOD["trellis"][0]}, "found torch.int16 with 2 axes"),
        ({"trellis": GOOD["trellis"][:, :, :40]}, "found 2.5 bits with codebook mcg, half widths need mul1"),
        ({"trellis": GOOD["trellis"][:, :, :63]}, "found a last axis of 63"),
        ({"trellis": torch.zeros(8, 16, 144, dtype=torch.int16)}, "found a last axis of 144"),
        ({"trellis": GOOD["trellis"][:7]}, "found 112 inputs and 256 outputs, needed multiples of 128"),
        ({"codebook": "mcg2"}, "codebook: found 'mcg2'"),
        ({"suh": torch.zeros(256, dtype=torch.float16)}, r"suh: found torch.float16 \(256,\), needed torch.float16 \(128,\)"),
        ({"svh": torch.zeros(256)}, "svh: found torch.float32"),
        ({"bias": torch.zeros(128, dtype=torch.float16)}, "bias: found"),
    ],
)
def test_a_matrix_of_the_wrong_layout_is_refused(change: dict, words: str) -> None:
    assert exl3.Exl3Matrix(**GOOD).bits == 4
    with pytest.raises(ValueError, match=words):
        exl3.Exl3Matrix(**{**GOOD, **change})
