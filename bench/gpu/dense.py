"""Dense products of a few rows on one GPU at the real shapes of one rank of two: checked, then timed, in one call.

`PYTHONPATH=engine python bench/gpu/dense.py OUT.json`. TB/s count the bytes of the packed matrix; enough copies lie behind one another in a
CUDA graph that none is read from the L2 cache twice. The last block compares with the library's bf16 product of the same shape.
"""

from __future__ import annotations

import json
import time

import torch
from experts import DEVICE, captured, timed
from result import begun, write
from torch import Tensor

from lockstep.kernels import fp8
from lockstep.kernels.coded import encode_q4
from lockstep.kernels.linear import rows
from lockstep.kernels.linear.rows import RowMatrix

# Inputs and outputs on one of two ranks.
SHAPES = {
    "kda_in": (4096, 12576), "kda_out": (4096, 4096), "dsa_in": (4096, 2336), "q_b": (1536, 8192), "dsa_out": (8192, 4096),
    "dense_gate_up": (4096, 12288), "dense_down": (6144, 4096), "shared_gate_up": (4096, 2048), "shared_down": (1024, 4096),
    "head": (4096, 77440),
}  # fmt: skip
ROWS = (1, 4, 8, 16, 32)
BYTES_IN_TURN = 1 << 30


def made(form: str, inputs: int, outputs: int, seed: int) -> tuple[RowMatrix, Tensor]:
    """A random matrix in one form, and its weights as fp64 `[outputs, inputs]`."""
    draw = torch.Generator(DEVICE).manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=draw, device=DEVICE) * inputs**-0.5
    if form == "bf16":
        return rows.pack_bf16(weight.bfloat16()), weight.bfloat16().double()
    if form == "fp8":
        codes, exponents = fp8.encode(weight)
        return rows.pack_fp8(codes, exponents), fp8.decode(codes, exponents, torch.float32).double()
    coded = encode_q4(weight)
    return rows.pack_q4(coded.codes, coded.factors), coded.decoded().double()


def inputs_of(form: str, count: int, width: int, seed: int) -> tuple[Tensor, Tensor | None, Tensor]:
    """Rows as a product takes them, their scales, and their values in fp64."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).to(DEVICE).bfloat16()
    if form != "fp8":
        return x, None, x.double()
    codes, exponents = fp8.encode(x.float())
    return codes.half(), torch.exp2(exponents.float()), fp8.decode(codes, exponents, torch.float32).double()


def multiply(x: Tensor, scales: Tensor | None, matrix: RowMatrix, part: slice | Tensor = slice(None)) -> Tensor:
    """The product of some of the rows."""
    own = x[part].contiguous()
    return rows.product(own.bfloat16(), [matrix], (own, own if scales is None else scales[part].contiguous()))


def check(form: str, inputs: int, outputs: int) -> float:
    """Values, every row count and place, order, graph. Returns the relative distance to float64; stops the program if anything is off."""
    matrix, weight = made(form, inputs, outputs, 1)
    x, scales, values = inputs_of(form, 32, inputs, 2)
    whole = multiply(x, scales, matrix)
    wanted = values @ weight.T
    distance = float((whole.double() - wanted).norm() / wanted.norm())
    if not distance < 4e-3:
        raise SystemExit(f"{form} {inputs} x {outputs}: {distance:.2e} from float64; needed: below 4e-3, the rounding of bf16")
    for count in range(1, 33):
        for first in {0, (32 - count) // 2, 32 - count}:
            if not torch.equal(multiply(x, scales, matrix, slice(first, first + count)), whole[first : first + count]):
                raise SystemExit(f"{form} {inputs} x {outputs}: {count} rows from {first} have other bits than 32 rows")
    order = torch.randperm(32, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    graph, held = captured(lambda: multiply(x, scales, matrix))
    held.fill_(torch.nan)
    graph.replay()
    if not torch.equal(multiply(x, scales, matrix, order), whole[order]) or not torch.equal(held, whole):
        raise SystemExit(f"{form} {inputs} x {outputs}: another order or a graph gives other bits")
    return distance


def measure(form: str, inputs: int, outputs: int) -> dict[str, dict[str, float]]:
    """Microseconds and TB/s by row count."""
    matrix, _ = made(form, inputs, outputs, 1)
    size = matrix.words.numel() * matrix.words.element_size() + matrix.factors.numel() * matrix.factors.element_size()
    copies = max(4, min(64, BYTES_IN_TURN // size))
    turn = [RowMatrix(form, inputs, outputs, matrix.words.clone(), matrix.factors) for _ in range(copies)]
    found = {}
    for count in ROWS:
        x, scales, _ = inputs_of(form, count, inputs, count)
        given, coded = x.bfloat16(), (x, x if scales is None else scales)
        us = timed(lambda given=given, coded=coded: [rows.product(given, [one], coded) for one in turn]) / copies * 1e3
        found[str(count)] = {"us": round(us, 2), "tb_per_s": round(size / us / 1e6, 3)}
    return found


def library(inputs: int, outputs: int) -> dict[str, dict[str, float]]:
    """The same for torch's bf16 product, whose bits may depend on the row count."""
    size = 2 * inputs * outputs
    copies = max(4, min(64, BYTES_IN_TURN // size))
    turn = [torch.randn(outputs, inputs, device=DEVICE).bfloat16() for _ in range(copies)]
    found = {}
    for count in ROWS:
        x = inputs_of("bf16", count, inputs, count)[0]
        us = timed(lambda x=x: [x @ one.T for one in turn]) / copies * 1e3
        found[str(count)] = {"us": round(us, 2), "tb_per_s": round(size / us / 1e6, 3)}
    return found


def main() -> None:
    """Check, measure, write."""
    asked, report = begun(__doc__)
    since = time.monotonic()
    with torch.inference_mode():
        small = {"tiny": (256, 1024), "ragged": (192, 272), "low_rank": (128, 4096)}
        report["from_float64"] = {
            f"{form} {name}": check(form, *shape) for form in rows.FORMS for name, shape in {**small, **SHAPES}.items() if name != "head"
        }
        print(f"checked after {time.monotonic() - since:.1f} s", flush=True)
        for form in rows.FORMS:
            report[form] = {name: measure(form, *shape) for name, shape in SHAPES.items() if (name, form) != ("head", "q4")}
            print(form, json.dumps({name: {r: v["tb_per_s"] for r, v in row.items()} for name, row in report[form].items()}), flush=True)
        report["library_bf16"] = {name: library(*shape) for name, shape in SHAPES.items()}
        print("library", json.dumps({name: {r: v["tb_per_s"] for r, v in row.items()} for name, row in report["library_bf16"].items()}))
    write(asked.out, report)
    print(f"done after {time.monotonic() - since:.1f} s")


if __name__ == "__main__":
    main()
