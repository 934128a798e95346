"""Dense products of a few rows on a CUDA device that read weights in the form they are stored in: bf16, 8 or 4 bits. Knows no layer.

A row's bits depend on the row and the matrix alone, whatever the number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lockstep.kernels import cuda
from lockstep.kernels.coded import CodedMatrix, Fp8Matrix, Q4Matrix
from lockstep.kernels.linear import many
from lockstep.kernels.tuned import Tuned

SOURCE = Path(__file__).with_name("rows.cu")
MOST_ROWS, TILE_ROWS, UNIT, STRIP = 32, 8, 64, 16
FORMS = ("bf16", "fp8", "q4")
# Of 16 outputs a block has one or two; the compiler keeps registers free for so many blocks.
KERNEL = Tuned("linear.rows", SOURCE, {"STRIPS": (1, 2), "BLOCKS": (1, 2, 3)})
MOST_PARTS = 3
# Two for each multiprocessor of the cards in mind; below the other number, warps are too few to keep memory busy.
_LEAST_BLOCKS, _FEW_BLOCKS = 264, 200


@dataclass(frozen=True, slots=True)
class RowMatrix:
    """A matrix of `inputs` by `outputs`, packed; `factors` as `form` needs them: per output fp32, or per 64 inputs fp16, or none.

    With several `heads` each has its own inputs and as many of the outputs."""

    form: str
    inputs: int
    outputs: int
    words: Tensor
    factors: Tensor
    heads: int = 1


def fits(inputs: int, outputs: int) -> bool:
    """True if a matrix of this shape can be packed."""
    return inputs % UNIT == 0 and outputs % STRIP == 0


def pack_bf16(weight: Tensor) -> RowMatrix:
    """From bf16 `[outputs, inputs]`."""
    words = _units(weight).permute(0, 3, 5, 2, 4, 6, 1, 7).contiguous()
    return RowMatrix("bf16", weight.shape[1], weight.shape[0], words, words.new_zeros(1, dtype=torch.float32))


def pack_fp8(codes: Tensor, exponents: Tensor) -> RowMatrix:
    """From e4m3 `codes [outputs, inputs]` and `exponents [outputs]`; see `kernels.fp8`."""
    words = _units(codes.view(torch.uint8)).permute(0, 3, 2, 4, 5, 6, 1, 7).contiguous()
    return RowMatrix("fp8", codes.shape[1], codes.shape[0], words, torch.exp2(exponents.float()))


def pack_q4(codes: Tensor, factors: Tensor) -> RowMatrix:
    """From `codes [outputs, inputs / 2]` and fp16 `factors [outputs, inputs / 64]`; see `kernels.coded`."""
    nibbles = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
    ordered = _units(nibbles).permute(0, 3, 2, 4, 5, 7, 6, 1).reshape(-1, 2)
    pairs = factors.view(-1, 2, 8, factors.shape[1]).permute(0, 3, 2, 1).contiguous()
    return RowMatrix("q4", nibbles.shape[1], nibbles.shape[0], ordered[:, 0] | ordered[:, 1] << 4, pairs)


def _units(values: Tensor) -> Tensor:
    """`[outputs, inputs]` as [strip, upper 8 outputs, output, unit of 64 inputs, 16 of them, 4 of these, upper 2, input]."""
    outputs, inputs = values.shape
    if not fits(inputs, outputs):
        raise ValueError(f"{inputs} inputs and {outputs} outputs; needed: multiples of {UNIT} and {STRIP}")
    return values.view(outputs // STRIP, 2, 8, inputs // UNIT, 4, 4, 2, 2)


def macros(parts: Sequence[RowMatrix], rows: int, card: str, paired: bool = False) -> dict[str, int]:
    """What the source is compiled with. No bit of a row depends on the number of rows, which only says how work is laid out."""
    tiles, outputs, inputs = -(-rows // TILE_ROWS), sum(part.outputs for part in parts), parts[0].inputs
    wide = paired or (len(parts) == 1 and outputs % (2 * STRIP) == 0 and outputs >= 2 * STRIP * _LEAST_BLOCKS and tiles <= 2)
    # exact: shapes alone decide into how many ranges the inputs are cut.
    few = outputs < STRIP * _FEW_BLOCKS * (1 + paired) and inputs >= 32 * UNIT
    # The compiler needs more registers for the other cards; fewer blocks leave them.
    blocks = 2 if not few and (tiles == 1 or card == "sm_90") else 1
    found = {"K": inputs, "HEADS": parts[0].heads, "FROM": inputs * parts[0].heads, "PITCH": outputs // (1 + paired), "PAIRED": int(paired)}
    found |= {"TILES": tiles, "STRIPS": 1 + wide, "WARPS": 16 if few else 8, "BLOCKS": blocks}
    for at in range(MOST_PARTS):
        found |= (
            {f"N{at}": parts[at].outputs, f"FORM{at}": FORMS.index(parts[at].form)} if at < len(parts) else {f"N{at}": 0, f"FORM{at}": 0}
        )
    return found


def chosen(found: dict[str, int]) -> dict[str, int]:
    """`macros` with what the launch table says of the same work."""
    case = tuple(value for name, value in found.items() if name not in KERNEL.space)
    return {**found, **KERNEL.configuration(case, {name: found[name] for name in KERNEL.space})}


def shared_bytes(found: dict[str, int]) -> int:
    """Dynamic shared memory of a block compiled with these macros."""
    return found["WARPS"] * TILE_ROWS * found["TILES"] * (STRIP * found["STRIPS"] + 4) * 4


Coded = tuple[Tensor, Tensor]


def encode(x: Tensor) -> Coded:
    """bf16 rows `[R, inputs]` as e4m3 values in fp16 and their scales `[R]` fp32, as products with an fp8 matrix take them."""
    codes, scales = torch.empty_like(x, dtype=torch.float16), torch.empty(len(x), dtype=torch.float32, device=x.device)
    plain = RowMatrix("bf16", x.shape[1], STRIP, x, x)
    cuda.load(SOURCE, macros([plain], 1, "sm_90"), x.device, {"encode": 0})["encode"](len(x), 256, (x, codes, scales), True)
    return codes, scales


def product(
    x: Tensor, parts: Sequence[RowMatrix], coded: Coded | None = None, limit: float | None = None, out: Tensor | None = None
) -> Tensor:
    """bf16 `[R, outputs]` of 1 to 32 rows `x [R, inputs]` (`[R, heads, inputs]`), bf16, and matrices that lie side by side.

    fp8 parts take `coded`, made of `x` if not given. With a `limit` the outputs are gate and up, and their clamped SwiGLU comes back,
    `[R, outputs / 2]`. `out` is written if given. Raises ValueError for other types or numbers of rows."""
    rows, one = x.shape[0], parts[0]
    if x.dtype is not torch.bfloat16 or not 0 < rows <= MOST_ROWS or x.numel() != rows * one.heads * one.inputs or not x[0].is_contiguous():
        raise ValueError(f"{x.dtype} {tuple(x.shape)}; needed: torch.bfloat16 of 1 to {MOST_ROWS} rows of {one.inputs} in a row")
    paired = limit is not None
    # A row alone lies apart from nothing, and its stride may be any number.
    found = chosen(macros(parts, rows, cuda.target(x.device), paired) | ({"FROM": x.stride(0)} if rows > 1 else {}))
    shared = shared_bytes(found)
    kernel = cuda.load(SOURCE, found, x.device, {"rows_product": shared})["rows_product"]
    if out is None:
        out = x.new_empty(rows, found["PITCH"])
    if coded is None:
        coded = encode(x.contiguous()) if any(part.form == "fp8" for part in parts) else (x, x)
    held = [*parts, *[one] * (MOST_PARTS - len(parts))]
    given = [tensor for part in held for tensor in (part.words, part.factors)]
    blocks = sum(part.outputs for part in parts) // (STRIP * found["STRIPS"])
    kernel(blocks, found["WARPS"] * 32, (*given, x, *coded, out, rows, limit or 0.0), True)
    return out


def of_plain(weight: Tensor) -> RowMatrix | None:
    """A plain `[outputs, inputs]` matrix packed, if it lies on a CUDA device as bf16 and its shape allows."""
    allowed = weight.is_cuda and weight.dtype is torch.bfloat16 and weight.dim() == 2
    return pack_bf16(weight) if allowed and fits(weight.shape[1], weight.shape[0]) else None


def of_coded(matrices: Sequence[CodedMatrix]) -> RowMatrix | None:
    """Coded neighbours of one kind packed side by side, if they lie on a CUDA device and their shape allows."""
    codes = torch.cat([matrix.codes for matrix in matrices])
    inputs = codes.shape[1] * (2 if isinstance(matrices[0], Q4Matrix) else 1)
    if not codes.is_cuda or not fits(inputs, len(codes)):
        return None
    if isinstance(matrices[0], Fp8Matrix):
        return pack_fp8(codes, torch.cat([matrix.exponents for matrix in matrices if isinstance(matrix, Fp8Matrix)]))
    return pack_q4(codes, torch.cat([matrix.factors for matrix in matrices if isinstance(matrix, Q4Matrix)]))


def of_heads(weight: Tensor) -> RowMatrix | None:
    """As `of_plain` for one matrix a head, `[heads, outputs, inputs]`."""
    heads, outputs, inputs = weight.shape
    packed = of_plain(weight.flatten(0, 1)) if fits(inputs, outputs) else None
    return replace(packed, heads=heads) if packed else None


def linear(x: Tensor, *parts: RowMatrix, limit: float | None = None) -> Tensor:
    """As `product`, of any number of rows; those of prompt tiles are multiplied another way."""
    if len(x) >= many.TILE:
        return many.linear(x, parts, limit)
    found = [product(x[at : at + MOST_ROWS], parts, limit=limit) for at in range(0, len(x), MOST_ROWS)]
    made = found[0] if len(found) == 1 else torch.cat(found)
    return made.view(len(x), parts[0].heads, -1) if x.dim() == 3 else made
