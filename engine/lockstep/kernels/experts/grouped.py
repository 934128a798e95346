"""EXL3 experts on a CUDA device: packing, launch shapes and the five launches of one call. Knows no router.

Every distinct expert of a call is read once; weights stay in their four bits. The arithmetic is that of `ref.exl3`: only the order of the
fp32 sums is another one, and it depends on nothing but the shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.exl3 import CODEBOOKS, HADAMARD, Exl3Matrix
from lockstep.kernels.experts import tiles
from lockstep.kernels.tuned import Tuned

SOURCE = Path(__file__).with_name("grouped.cu")
BITS = 4
MOST_PAIRS = 512
ITEM_ROWS = 8
PIECE_BYTES = 2048
PADDED_COLUMNS = 68
BLOCK = 64
# Pieces of K a warp should have before K is cut further: sums of slices cost as much as half a piece.
LEAST_PIECES = 4
REAL, BYTES_ONLY, ALU_ONLY = 0, 1, 2
_MASK = 0x8FFF8FFF - (1 << 32)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a product runs on one kind of card; no choice changes a bit but `warps`, which fixes how K is cut."""

    stages: int
    blocks: int
    buffers: int
    warps: int = 8
    unroll: int = 4
    overlap: bool = True

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        sums = self.buffers * self.warps * ITEM_ROWS * PADDED_COLUMNS * 4
        return self.warps * self.stages * (PIECE_BYTES + 8) + sums


# As measured on an H200 (bench/results/experts_h200.json); the other one fits 99 KiB and was compiled, not measured.
LAUNCHES = {"sm_90": Launch(2, 2, 1), "sm_120": Launch(4, 1, 2)}
KERNEL = Tuned("experts.grouped", SOURCE, {"stages": (2, 4), "blocks": (1, 2), "buffers": (1, 2), "unroll": (2, 4), "overlap": (0, 1)})


@dataclass(frozen=True, slots=True)
class Shape:
    """One product of the grouped kernel: `sides` matrices of `inputs` by `outputs / sides` that lie side by side."""

    inputs: int
    outputs: int
    sides: int

    def slices(self, warps: int) -> int | None:
        """Ranges K is cut into, the most that leave whole units; None if the shape does not divide."""
        blocks, strips = self.inputs // BLOCK, self.outputs // BLOCK
        fit = [n for n in (8, 4, 2, 1) if warps % n == 0 and blocks % n == 0 and strips % (warps // n) == 0]
        return next((n for n in fit if blocks // n >= LEAST_PIECES), fit[-1] if fit else None)

    def macros(self, launch: Launch, codebook: str, variant: int = REAL) -> dict[str, int]:
        """What the source is compiled with. Raises ValueError for a shape that does not divide."""
        slices = self.slices(launch.warps)
        if slices is None:
            raise ValueError(
                f"{self.inputs} inputs and {self.outputs} outputs; needed: multiples of {BLOCK} that {launch.warps} warps divide"
            )
        return {
            "K": self.inputs, "N": self.outputs, "SIDES": self.sides, "SLICES": slices, "WARPS": launch.warps, "BLOCKS": launch.blocks,
            "STAGES": min(launch.stages, self.inputs // BLOCK // slices), "BUFFERS": launch.buffers,
            "UNROLL": launch.unroll, "EARLY": int(self.sides == 1), "VARIANT": variant, "CODEBOOK": CODEBOOKS.index(codebook),
            "MOST_PAIRS": MOST_PAIRS,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """All experts of a layer on one device: packed words (`pack_words`) of gate beside up and of down, and their scales in fp16."""

    gate_up: Tensor
    down: Tensor
    in_suh: Tensor
    in_svh: Tensor
    down_suh: Tensor
    down_svh: Tensor
    codebook: str

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """Of gate and up, and of down."""
        hidden, width = self.in_suh.shape[2], self.down_suh.shape[1]
        return Shape(hidden, 2 * width, 2), Shape(width, hidden, 1)


def fits(gate: Sequence[Exl3Matrix], down: Sequence[Exl3Matrix]) -> bool:
    """True if matrices like these can be packed: on a CUDA device, four bits, one codebook, a shape that divides."""
    first = gate[0]
    alike = {(matrix.bits, matrix.codebook) for matrix in (*gate, *down)}
    shapes = Shape(first.k, 2 * first.n, 2), Shape(first.n, first.k, 1)
    return first.trellis.is_cuda and alike == {(BITS, first.codebook)} and all(shape.slices(8) for shape in shapes)


def pack_words(trellis: Tensor) -> Tensor:
    """int16 `[K/16, N/16, 64]` to int32 `[N/64, K/64, strip 4, lane 32, word 4]`, the order the kernel reads. Bits are only moved."""
    words = trellis.contiguous().view(torch.int32)
    k, n = words.shape[0] // 4, words.shape[1] // 4
    return words.view(k, 4, n, 4, 8, 4).permute(2, 0, 3, 4, 1, 5).reshape(n, k, 4, 32, 4)


def pack(gate: Sequence[Exl3Matrix], up: Sequence[Exl3Matrix], down: Sequence[Exl3Matrix]) -> GroupedExperts:
    """Every expert of a layer, in expert order; see `fits`."""
    both = [torch.cat([pack_words(matrix.trellis) for matrix in pair]) for pair in zip(gate, up, strict=True)]
    scales = lambda kind, name: torch.stack([getattr(matrix, name) for matrix in kind])  # noqa: E731
    return GroupedExperts(
        gate_up=torch.stack(both),
        down=torch.stack([pack_words(matrix.trellis) for matrix in down]),
        in_suh=torch.stack([scales(gate, "suh"), scales(up, "suh")]),
        in_svh=torch.stack([scales(gate, "svh"), scales(up, "svh")]),
        down_suh=scales(down, "suh"),
        down_svh=scales(down, "svh"),
        codebook=gate[0].codebook,
    )


def launch_on(device: torch.device) -> Launch:
    """The launch shape for a device; cards without one of their own get that of the smallest."""
    return LAUNCHES.get(cuda.target(device), LAUNCHES["sm_120"])


def chosen_launch(device: torch.device, shape: Shape, codebook: str) -> Launch:
    """That of the launch table, or that for the device."""
    usual = launch_on(device)
    case = (codebook, shape.inputs, shape.outputs, shape.sides)
    return replace(usual, **KERNEL.configuration(case, {name: int(getattr(usual, name)) for name in KERNEL.space}))


def placed(x: Tensor) -> Tensor:
    """Inputs `[.., K]` in the order in which a product reads them; see `place` in the source."""
    tiles = x.unflatten(-1, (-1, 2, 2, 2, 4, 2))  # 64 inputs: tile's two bits, then its row's 8, middle and 1
    axes = tuple(range(x.dim() - 1))
    first = x.dim() - 1
    return tiles.permute(*axes, *(first + axis for axis in (0, 5, 1, 4, 3, 2))).reshape(x.shape)


def multiply(
    x: Tensor, plan: Tensor, packed: Tensor, shape: Shape, codebook: str, variant: int = REAL, launch: Launch | None = None
) -> Tensor:
    """Inner products fp32 `[pairs, outputs]` of rotated fp16 inputs `x [sides, pairs, inputs]` in the order of `placed`.

    Each pair meets its own expert, as `plan` says (see the source)."""
    launch = launch or chosen_launch(x.device, shape, codebook)
    kernel = cuda.load(SOURCE, shape.macros(launch, codebook, variant), x.device, {"product": launch.shared_bytes})["product"]
    out = torch.empty(x.shape[1], shape.outputs, dtype=torch.float32, device=x.device)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    kernel(launch.blocks * processors, launch.warps * 32, (packed, x, out, plan, x.shape[1], _MASK), launch.overlap)
    return out


def small_macros(hidden: int, width: int, slots: int) -> dict[str, int]:
    """What the source is compiled with for the kernels around the products."""
    return {"HIDDEN": hidden, "WIDTH": width, "SLOTS": slots, "MOST_PAIRS": MOST_PAIRS}


# bf16 rows to which a result is added in place, and what must be called before.
Onto = tuple[Tensor, Callable[[], None]]


def apply(
    x: Tensor, chosen: Tensor, weights: Tensor, experts: GroupedExperts, limit: float, variant: int = REAL, onto: Onto | None = None
) -> Tensor:
    """See `experts.apply`; `x` is bf16, a step's rows or those of whole prompt tiles. Raises ValueError for another type.

    With `onto`, for a step's rows, the result is rounded and added there."""
    if len(x) >= tiles.LEAST_ROWS and x.dtype is torch.bfloat16 and experts.in_suh.shape[2] % tiles.LEAST_HIDDEN == 0:
        return tiles.apply(x, chosen, weights, experts, limit)
    rows, slots = chosen.shape
    pairs, (gate_up, down) = rows * slots, experts.shapes
    if x.dtype is not torch.bfloat16 or pairs > MOST_PAIRS:
        raise ValueError(f"{pairs} pairs of {x.dtype}; needed: at most {MOST_PAIRS} of torch.bfloat16")
    count, width, hidden, launch = len(experts.down_suh), down.inputs, gate_up.inputs, launch_on(x.device)
    names = {"prepare": 0, "activate": 0, "combine": 0}
    small = cuda.load(SOURCE, small_macros(hidden, width, slots), x.device, names)
    make = lambda *size, dtype: torch.empty(*size, dtype=dtype, device=x.device)  # noqa: E731
    rotated, plan = make(2, pairs, hidden, dtype=torch.float16), make(1 + MOST_PAIRS * (2 + ITEM_ROWS), dtype=torch.int32)
    x, chosen, weights = x.contiguous(), chosen.contiguous(), weights.contiguous()
    small["prepare"](1 + _blocks(pairs, hidden), 256, (x, chosen, experts.in_suh, rotated, plan, pairs, count), launch.overlap)
    inner = multiply(rotated, plan, experts.gate_up, gate_up, experts.codebook, variant)
    own = make(1, pairs, width, dtype=torch.float16)
    small["activate"](
        _blocks(pairs, width), 256, (inner, chosen, experts.in_svh, experts.down_suh, own, pairs, count, float(limit)), launch.overlap
    )
    outer = multiply(own, plan, experts.down, down, experts.codebook, variant)
    out, before = onto or (make(rows, hidden, dtype=torch.float32), None)
    if before:
        before()
    given = (outer, chosen, weights, experts.down_svh, out, rows, int(onto is not None))
    small["combine"](_blocks(rows, hidden), 256, given, launch.overlap)
    return out


def _blocks(rows: int, columns: int) -> int:
    """Blocks of 8 warps, one for 128 columns of a row each."""
    return -(-rows * columns // HADAMARD // 8)
