"""EXL3 tiles in plain torch: codebooks, the ring, tile order, Hadamard rotations. Device-agnostic, slow, exact.

Knows nothing of files, layers or ranks. Source of the format: the published EXL3 quantizer and kernels; every function here has
the bits of the plain reference codec the tests carry.

Words: a tile is a 16 x 16 block of the inner weight; its ring is the circular bit string of 256 * bits bits that stores it; a
state is the 16-bit window of the ring that one value is decoded from.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

HADAMARD = 128
TILE = 16
CODEBOOKS = ("3inst", "mcg", "mul1")
MULTIPLIERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
WIDTHS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)
# 1 / sqrt(128) with the digits the format fixes; rounded to fp32 where it is used.
ROTATION_SCALE = 0.088388347648
_LEVELS = HADAMARD.bit_length() - 1


@lru_cache(maxsize=3)
def codebook(name: str) -> Tensor:
    """fp16 value of every 16-bit state, [65536], on the CPU."""
    state = torch.arange(1 << 16, dtype=torch.int64)
    if name == "mul1":
        x = (state * MULTIPLIERS[name]) & 0xFFFFFFFF
        bytes_sum = ((x[:, None] >> torch.tensor([0, 8, 16, 24])) & 0xFF).sum(1)
        # exact: the product and sum fit float64 without rounding, so one rounding to fp16 is the fused multiply-add.
        return ((bytes_sum + 1024).double() * 0.00676727294921875 - 10.3828125).half()
    x = state * 89226354 + 64248484 if name == "3inst" else state * MULTIPLIERS[name]
    x = ((x & 0xFFFFFFFF) & 0x8FFF8FFF) ^ 0x3B603B60
    low, high = _half_from_bits(x & 0xFFFF), _half_from_bits(x >> 16)
    return (low.double() + high.double()).half()


def _half_from_bits(pattern: Tensor) -> Tensor:
    signed = torch.where(pattern >= 1 << 15, pattern - (1 << 16), pattern)
    return signed.to(torch.int16).view(torch.float16)


def ring_steps(bits: float) -> list[int]:
    """Ring bits that each of the 256 values brings; x.5 widths alternate floor and floor + 1."""
    low = int(bits)
    odd = low if bits == low else low + 1
    return [low if value % 2 == 0 else odd for value in range(256)]


@lru_cache(maxsize=len(WIDTHS))
def _windows(bits: float) -> tuple[Tensor, Tensor]:
    """(16-bit word a value's window starts in, bit offset inside it), both int64 [256]."""
    steps = torch.tensor(ring_steps(bits))
    start = (steps.cumsum(0) - 16) % int(256 * bits)
    return start // 16, start % 16


def reading_order(words: Tensor) -> Tensor:
    """Swap the two 16-bit words of every pair: storage is little-endian 32-bit words read from their top bit. Its own inverse."""
    return words.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


def unpack_states(trellis: Tensor) -> Tensor:
    """int16 [.., 16 * bits] -> int64 states [.., 256] in ring order."""
    word, offset = (index.to(trellis.device) for index in _windows(trellis.shape[-1] / 16))
    words = reading_order(trellis).int() & 0xFFFF
    first, second = words[..., word], words.roll(-1, -1)[..., word]
    pair = (first.long() << 16) | second
    return (pair >> (16 - offset)) & 0xFFFF


def tile_positions() -> tuple[Tensor, Tensor]:
    """Row (input) and column (output) inside a tile of each of the 256 values in ring order: the B registers of two m16n8k16."""
    value = torch.arange(256)
    lane, j = value // 8, value % 8
    row = 2 * (lane % 4) + (j & 1) + 8 * ((j >> 1) & 1)
    column = lane // 4 + 8 * (j >> 2)
    return row, column


def from_tiles(tiles: Tensor) -> Tensor:
    """[k/16, n/16, 256] in ring order -> [k, n]."""
    row, column = tile_positions()
    place = torch.empty(256, dtype=torch.int64)
    place[row * TILE + column] = torch.arange(256)
    blocks = tiles[..., place.to(tiles.device)].unflatten(-1, (TILE, TILE)).transpose(1, 2)
    return blocks.reshape(tiles.shape[0] * TILE, tiles.shape[1] * TILE)


def decode_inner(trellis: Tensor, name: str) -> Tensor:
    """int16 trellis [k/16, n/16, 16 * bits] -> inner weight fp16 [k, n]."""
    return from_tiles(codebook(name).to(trellis.device)[unpack_states(trellis)])


def butterfly(x: Tensor) -> Tensor:
    """Unscaled natural-order Walsh-Hadamard transform of every block of 128 of the last axis, in x's dtype.

    Each level adds and subtracts neighbours and moves sums before differences, so level l meets the values of stride 2^l and the
    last one leaves natural order.
    """
    blocks = x.reshape(-1, HADAMARD)
    if x.device.type == "cpu":
        return torch.from_numpy(_host_butterfly(blocks.numpy())).view(x.shape)
    for _ in range(_LEVELS):
        a, b = blocks[:, 0::2], blocks[:, 1::2]
        blocks = torch.cat((a + b, a - b), 1)
    return blocks.view(x.shape)


def _host_butterfly(blocks: np.ndarray) -> np.ndarray:
    """The same sums; a serial step transforms a few blocks at a time, where torch's price a call is twice NumPy's."""
    half = HADAMARD // 2
    spare = np.empty_like(blocks), np.empty_like(blocks)
    for level in range(_LEVELS):
        out, a, b = spare[level % 2], blocks[:, 0::2], blocks[:, 1::2]
        np.add(a, b, out=out[:, :half])
        np.subtract(a, b, out=out[:, half:])
        blocks = out
    return blocks


def rotate_input(x: Tensor, suh: Tensor) -> Tensor:
    """[.., k] any float, fp16 [k] -> fp16 [.., k]: fp16(x) * suh rounded to fp16, butterfly and factor in fp32, one rounding."""
    return (butterfly((x.half() * suh).float()) * ROTATION_SCALE).half()


def rotate_output(z: Tensor, svh: Tensor) -> Tensor:
    """fp32 [.., n], fp16 [n] -> fp32 [.., n]: butterfly, factor and svh all in fp32."""
    return butterfly(z.float()) * ROTATION_SCALE * svh.float()


def decode_outer(trellis: Tensor, suh: Tensor, svh: Tensor, name: str) -> Tensor:
    """The whole weight W = diag(suh) H Wq H diag(svh) in float64, [k, n] (inputs first)."""
    inner = decode_inner(trellis, name).double()
    rotated = butterfly(inner.T).T / 128**0.5 * suh.double()[:, None]
    return butterfly(rotated) / 128**0.5 * svh.double()
