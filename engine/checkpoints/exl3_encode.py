"""EXL3 encoder: a plain weight becomes trellis, suh and svh. Knows nothing of files or of the model.

Each 16 x 16 tile is a closed path through a trellis whose edges are the 65,536 states of the codebook; the path of least squared
error is found by dynamic programming (tail-biting Viterbi). Works on the CPU and on CUDA.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lockstep.kernels.exl3 import HADAMARD, TILE, Exl3Matrix
from lockstep.kernels.exl3.ref import butterfly, codebook, reading_order, ring_steps, tile_positions

_VALUES = 256
# Tiles searched at once: one step of the CPU's batch fits its second-level cache; the GPU's batch is bound by the path costs it keeps.
_CPU_TILES = 2
_GPU_HISTORY_BYTES = 8 << 30


def encode_matrix(weight: Tensor, bits: float, name: str, generator: torch.Generator) -> Exl3Matrix:
    """Encode y = x W. `weight` is W [k, n] (inputs first), any float type, k and n multiples of 128; `generator` is a CPU generator.

    Random signs on both sides, one scale an input, both rotations, then the trellis: no error feedback between tiles.
    """
    k, n = weight.shape
    if k % HADAMARD or n % HADAMARD:
        raise ValueError(f"weight: found {k} x {n}, EXL3 needs multiples of {HADAMARD} on both sides")
    input_sign, output_sign = (_signs(size, generator).to(weight.device) for size in (k, n))
    rotated = butterfly(weight.double() * output_sign) / math.sqrt(HADAMARD)
    row_scale = rotated.square().mean(1).sqrt() / codebook(name).double().square().mean().sqrt()
    suh = (input_sign * row_scale.clamp(min=1e-6)).half()
    inner = butterfly((rotated / suh.double()[:, None]).T).T / math.sqrt(HADAMARD)
    tiles = to_tiles(inner.float())
    states = encode_tiles(tiles.flatten(0, 1), bits, name)
    trellis = pack_states(states, bits).unflatten(0, tiles.shape[:2])
    return Exl3Matrix(trellis.contiguous(), suh, output_sign.half(), name)


def to_tiles(weight: Tensor) -> Tensor:
    """[k, n] -> [k/16, n/16, 256] in ring order."""
    row, column = (index.to(weight.device) for index in tile_positions())
    k, n = weight.shape
    blocks = weight.reshape(k // TILE, TILE, n // TILE, TILE).transpose(1, 2).flatten(2)
    return blocks[..., row * TILE + column]


def pack_states(states: Tensor, bits: float) -> Tensor:
    """int64 states [.., 256] whose windows overlap consistently -> int16 [.., 16 * bits]. Only each state's own bits are read."""
    columns = []
    for value, step in enumerate(ring_steps(bits)):
        columns += [(states[..., value] >> bit) & 1 for bit in range(step - 1, -1, -1)]
    ring = torch.stack(columns, -1).unflatten(-1, (-1, 16))
    weight = 1 << torch.arange(15, -1, -1, device=states.device)
    words = (ring * weight).sum(-1)
    words = torch.where(words >= 1 << 15, words - (1 << 16), words).to(torch.int16)
    return reading_order(words)


def _signs(count: int, generator: torch.Generator) -> Tensor:
    return (torch.randint(0, 2, (count,), generator=generator) * 2 - 1).double()


def encode_tiles(tiles: Tensor, bits: float, name: str) -> Tensor:
    """fp32 [t, 256] in ring order -> int64 states [t, 256] whose windows overlap all the way round.

    Two searches a tile: the first, on the ring turned by half with free ends, only finds a good node at the seam; the second
    runs once round the ring with that node at both ends.
    """
    steps = ring_steps(bits)
    nodes = 1 << (16 - int(bits))
    batch = _CPU_TILES if tiles.device.type == "cpu" else max(1, _GPU_HISTORY_BYTES // (4 * _VALUES * nodes))
    half = _VALUES // 2
    turned = [(index + half) % _VALUES for index in range(_VALUES)]
    search = _Search(steps, codebook(name).to(tiles.device))
    found = []
    for part in tiles.split(batch):
        seam = search.run(part, turned, None)[:, half] >> steps[0]
        found.append(search.run(part, list(range(_VALUES)), seam))
    return torch.cat(found)


class _Search:
    """Viterbi over one codebook. A node is the part of a window that was in the ring before the value's own bits."""

    def __init__(self, steps: list[int], table: Tensor) -> None:
        self.steps = steps
        self.table = table.float()
        # Edge costs are laid out [bits that leave, bits that come, bits that stay]: the step then only broadcasts and reduces.
        self.layouts = {}
        for own, leave in {(steps[i], steps[(i + 1) % _VALUES]) for i in range(_VALUES)}:
            self.layouts[own, leave] = self.table.view(1 << leave, -1, 1 << own).transpose(1, 2).contiguous()

    def run(self, tiles: Tensor, order: list[int], pinned: Tensor | None) -> Tensor:
        """States [t, len(order)] of the best path over the values `order`, with node `pinned` [t] at both ends (None: free)."""
        count = len(tiles)
        cost = torch.zeros(count, 1 << (16 - self.steps[order[0]]), device=tiles.device)
        if pinned is not None:
            cost.fill_(torch.inf).scatter_(1, pinned[:, None], 0.0)
        history = [cost]
        for value in order:
            history.append(self._step(history[-1], tiles[:, value], value))
        node = history[-1].argmin(1) if pinned is None else pinned
        states = torch.empty(count, len(order), dtype=torch.int64, device=tiles.device)
        for place in range(len(order) - 1, -1, -1):
            states[:, place] = self._back(history[place], tiles[:, order[place]], order[place], node)
            node = states[:, place] >> self.steps[order[place]]
        return states

    def _step(self, cost: Tensor, wanted: Tensor, value: int) -> Tensor:
        """Least cost of every node after `value`, [t, nodes]."""
        layout = self.layouts[self.steps[value], self.steps[(value + 1) % _VALUES]]
        leave, own, stay = layout.shape
        error = layout - wanted.view(-1, 1, 1, 1)
        total = torch.addcmul(cost.view(-1, leave, 1, stay), error, error, out=error)
        return total.amin(1).transpose(1, 2).reshape(len(wanted), stay * own)

    def _back(self, cost: Tensor, wanted: Tensor, value: int, node: Tensor) -> Tensor:
        """The state through which the best path reaches `node` after `value`, [t]."""
        own, leave = self.steps[value], self.steps[(value + 1) % _VALUES]
        states = (torch.arange(1 << leave, device=cost.device) << (16 - leave)) | node[:, None]
        total = cost.gather(1, states >> own) + (self.table[states] - wanted[:, None]).square()
        return states.gather(1, total.argmin(1, keepdim=True))[:, 0]
