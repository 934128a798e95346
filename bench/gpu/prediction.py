"""What rounds and prompts should take on RTX PRO 6000 cards, from what one H200 took. Knows results and numbers, no kernel and no page.

A `Range` is (least, most). Least: a part takes as long as its bytes or, where that is longer, as its work spread over the card's
multiprocessors, one hidden behind the other. Most: bytes and work one after the other, and work no faster for more multiprocessors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Range = tuple[float, float]
Results = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Card:
    """Multiprocessors; from the most to the least that is to be expected: clock, TB/s of large reads, TFLOP/s of large bf16 products."""

    multiprocessors: int
    ghz: Range
    tb_per_s: Range
    tflop_per_s: Range


# Large reads as measured here (`large_pass_tb_per_s` of experts_h200.json); clock under load and bf16 products are estimates.
H200 = Card(132, (1.9, 1.9), (4.24, 4.24), (640.0, 640.0))
# Published by owners of such cards: 1.58 to 1.63 TB/s for a large matrix of one row, 426 to 433 TFLOP/s at 600 W. Clocks of 2.6 GHz at
# 600 W and 1.6 GHz at 300 W, and 280 TFLOP/s at 300 W, are estimates.
RTX_PRO = Card(188, (2.6, 1.6), (1.63, 1.58), (430.0, 280.0))

# The model, one rank of two.
LAYERS, SPARSE, KDA, DSA, HIDDEN, EXPERTS, CHOSEN, WIDTH = 45, 42, 34, 11, 4096, 288, 8, 1024
VOCABULARY = 77440
EXPERT_BYTES = 3 * HIDDEN * WIDTH // 2 + 2 * (3 * HIDDEN + 3 * WIDTH)
COUNTS = {"kda_in": KDA, "kda_out": KDA, "dsa_in": DSA, "q_b": DSA, "dsa_out": DSA, "dense_gate_up": 3, "dense_down": 3,
          "shared_gate_up": SPARSE, "shared_down": SPARSE}  # fmt: skip
# Weights of what is not among the shapes of dense_h200.json: keys' and values' projection in bf16, the indexer's queries in 8 bits.
KEYS_AND_VALUES, INDEX_QUERIES = DSA * 32 * 512 * 512, DSA * 1536 * 4096
# Router in bf16; hyper-connections, 24 x 4 D in fp32 twice a layer.
SMALL_BYTES = SPARSE * EXPERTS * HIDDEN * 2 + LAYERS * 2 * 24 * 4 * HIDDEN * 4
# fp32 states of the delta rule, read and written.
STREAM_BYTES = KDA * 2 * 32 * 128 * 128 * 4
STREAMS = {1: 1, 2: 1, 4: 1, 8: 1, 16: 4, 32: 4}

# Two sums a layer, of bf16 rows. GB/s between two such cards over PCIe 5: 50 to 56 published, 27 by the host.
SUMS, PCIE_GB_PER_S = 2 * LAYERS, (50.0, 27.0)
# Microseconds of NCCL for so many bytes, published for four such cards over PCIe 5; 71 at 64 KiB, out of line, is left out.
NCCL_US = {1024: 13.5, 8192: 13.9, 16384: 14.7, 32768: 15.6, 131072: 24.7, 262144: 40.9, 524288: 71.7, 1048576: 85.2}
# Launches of a sum: one of ours; gather, widen, add and round through the library.
LAUNCHES_OF_A_SUM = (1, 5)
# Microseconds of a launch by the host: published for engines of this kind at least; here at most, from step_h200.json.
LEAST_LAUNCH_US = 11.0

# A slice of a prompt: passes over four streams of all rows, and over rows of chosen experts, in bytes a token.
SLICE = 4096
STREAM_PASSES, CHOSEN_PASSES = 3, 4
LIBRARY = "nvjet"


def between(points: dict[float, float], at: float) -> float:
    """Straight lines between points in ascending order; beyond the last one in proportion to it."""
    known = sorted(points.items())
    if at >= known[-1][0]:
        return known[-1][1] * at / known[-1][0]
    for (low, one), (high, other) in pairwise(known):
        if at <= high:
            return one + (other - one) * (max(at, low) - low) / (high - low)
    raise ValueError(f"no points around {at}")


def spread(even: bool, ends: int) -> float:
    """How many times as long work takes on the RTX PRO as on the H200; `even` where more multiprocessors help. `ends`: 0 least, 1 most."""
    return (H200.multiprocessors / RTX_PRO.multiprocessors if even else 1.0) * H200.ghz[ends] / RTX_PRO.ghz[ends]


def moved(measured_ms: float, moved_bytes: float, even: tuple[bool, bool]) -> Range:
    """A part of `measured_ms` on the H200 that moves so many bytes, on the RTX PRO; `even` as of `spread`, for least and most."""
    bytes_ms = [moved_bytes / 1e9 / rate for rate in RTX_PRO.tb_per_s]
    work_ms = max(0.0, measured_ms - moved_bytes / 1e9 / H200.tb_per_s[0])
    return max(bytes_ms[0], measured_ms * spread(even[0], 0)), bytes_ms[1] + work_ms * spread(even[1], 1)


def added(*parts: Range) -> Range:
    """One after the other."""
    return sum(part[0] for part in parts), sum(part[1] for part in parts)


def distinct(rows: int) -> float:
    """Experts that so many rows choose in a layer where routing is even."""
    return EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** rows)


def _products_us(results: Results, variant: str) -> dict[float, float]:
    rows = results["experts"]["distinct_experts"].values()
    return {one["distinct_per_layer"]: sum(one[part][variant]["us_per_layer"] for part in ("gate_up", "down")) for one in rows}


def experts_us(results: Results, variant: str, experts: float) -> float:
    """Microseconds a layer of both products of so many distinct experts on the H200."""
    return between(_products_us(results, variant), experts)


def distinct_like(results: Results, rows: int) -> float:
    """How many distinct experts take as long as the products of the measured round did."""
    taken = {us: experts for experts, us in _products_us(results, "real").items()}
    return between(taken, share_ms(results, rows, "product") / SPARSE * 1e3)


def share_ms(results: Results, rows: int, kernel: str) -> float:
    """Milliseconds of a kernel in the measured round."""
    one = results["round"]["rounds"][str(rows)]
    return one["share"][kernel] * one["graph_ms"]


def even_ms(results: Results, rows: int) -> float:
    """The H200's round as it would be with even routing."""
    own = experts_us(results, "real", distinct(rows)) * SPARSE / 1e3
    return results["round"]["rounds"][str(rows)]["round_ms"] - share_ms(results, rows, "product") + own


def matrix_bytes(results: Results, form: str) -> float:
    """Bytes of the matrices in `COUNTS` in one form."""
    return sum(count * _size(results["dense"][form][name]) for name, count in COUNTS.items())


def _size(by_rows: dict[str, dict[str, float]]) -> float:
    return by_rows["1"]["us"] * by_rows["1"]["tb_per_s"] * 1e6


def dense_bytes(results: Results) -> float:
    """Bytes of large dense matrices in q4, the head in 8 bits."""
    return matrix_bytes(results, "q4") + _size(results["dense"]["fp8"]["head"]) + 2 * KEYS_AND_VALUES + INDEX_QUERIES


def round_parts(results: Results, rows: int) -> dict[str, Range]:
    """Milliseconds of one rank's round on one RTX PRO behind a short context, routing even."""
    one, experts = results["round"]["rounds"][str(rows)], distinct(rows)
    expert_bytes = SPARSE * experts * EXPERT_BYTES
    bytes_us, alu_us = (experts_us(results, variant, experts) for variant in ("bytes_only", "alu_only"))
    reached = expert_bytes / SPARSE / bytes_us / 1e6 / H200.tb_per_s[0]
    over = experts_us(results, "real", experts) / max(bytes_us, alu_us)
    alu_ms = alu_us * SPARSE / 1e3
    products = (
        max(expert_bytes / 1e9 / RTX_PRO.tb_per_s[0], alu_ms * spread(True, 0)),
        max(expert_bytes / 1e9 / RTX_PRO.tb_per_s[1] / min(1.0, reached), alu_ms * spread(False, 1)) * over,
    )
    dense_ms = share_ms(results, rows, "rows_product")
    rest_ms = one["graph_ms"] - share_ms(results, rows, "product") - dense_ms
    host_ms = one["round_ms"] - one["graph_ms"]
    return {
        "experts": products,
        "dense": moved(dense_ms, dense_bytes(results), (True, False)),
        "small launches": moved(rest_ms, SMALL_BYTES + STREAMS[rows] * STREAM_BYTES, (False, False)),
        "commit and host": (host_ms, host_ms),
    }


def bytes_ms(results: Results, rows: int) -> float:
    """Milliseconds of the same round's bytes alone at the most TB/s."""
    moved_bytes = SPARSE * distinct(rows) * EXPERT_BYTES + dense_bytes(results) + SMALL_BYTES + STREAMS[rows] * STREAM_BYTES
    return moved_bytes / 1e9 / RTX_PRO.tb_per_s[0]


def exchange_ms(results: Results, rows: int) -> Range:
    """Sums of two ranks and the joining of logits. Least: our launch, as measured on one card, and PCIe; most: NCCL's times."""
    size, logits = rows * HIDDEN * 2, rows * VOCABULARY * 2
    own = {float(name): one["us_each"] for name, one in results["exchange"]["one_process_two_streams"]["graph_of_90_bf16_by_bytes"].items()}
    across = [size / rate / 1e3 for rate in PCIE_GB_PER_S]
    nccl = {float(name): us for name, us in NCCL_US.items()}
    least = SUMS * (between(own, size) + across[0]) + logits / PCIE_GB_PER_S[0] / 1e3
    return least / 1e3, (SUMS * between(nccl, size) + between(nccl, logits)) / 1e3


def host_launch_us(results: Results) -> float:
    """Microseconds a launch of steps that the host launched."""
    return max(one["ms"] / one["launches"] * 1e3 for one in results["step"]["q4"]["step"].values())


def launched_ms(results: Results, rows: int) -> Range:
    """What the host needs to launch a round of two ranks kernel by kernel, as over NCCL."""
    nodes = results["round"]["rounds"][str(rows)]["nodes"]
    launches = [nodes + SUMS * each for each in LAUNCHES_OF_A_SUM]
    return launches[0] * LEAST_LAUNCH_US / 1e3, launches[1] * host_launch_us(results) / 1e3


def rounds(results: Results, rows: int) -> dict[str, Range]:
    """One card; two with rounds captured, sums from card to card included; two over NCCL, where the host launches while the cards work."""
    one = added(*round_parts(results, rows).values())
    captured, launched = added(one, exchange_ms(results, rows)), launched_ms(results, rows)
    return {"one": one, "captured": captured, "launched": (max(captured[0], launched[0]), max(captured[1], launched[1]))}


def prompt_parts(results: Results) -> dict[str, Range]:
    """Milliseconds of a slice of 4096 tokens behind nothing, dense matrices in bf16, on two RTX PRO; nothing hides the exchange."""
    measured = results["prompt"]["behind_0"]
    products_ms = measured["kernels_ms"]["tile_product"]
    library_ms = sum(ms for name, ms in measured["kernels_ms"].items() if name.startswith(LIBRARY))
    pairs = SLICE * CHOSEN * SPARSE
    tflop = pairs * 3 * HIDDEN * WIDTH * 2 / 1e12
    products = [tflop / rate * 1e3 for rate in RTX_PRO.tflop_per_s]
    decoding_ms = products_ms - tflop / H200.tflop_per_s[0] * 1e3
    tflop = SLICE * 2 * (matrix_bytes(results, "bf16") / 2 + KEYS_AND_VALUES + INDEX_QUERIES) / 1e12
    library = [tflop / rate * 1e3 for rate in RTX_PRO.tflop_per_s]
    passed_bytes = (SLICE * SUMS * STREAM_PASSES * 4 + pairs * CHOSEN_PASSES) * HIDDEN * 2
    exchange = [SUMS * SLICE * HIDDEN * 2 / 1e6 / rate for rate in PCIE_GB_PER_S]
    return {
        "experts": (max(products[0], products_ms * spread(True, 0)), products[1] + decoding_ms * spread(True, 1)),
        "library products": (library[0], library[1]),
        "the rest": moved(measured["gpu_ms"] - products_ms - library_ms, passed_bytes, (True, True)),
        "exchange": (exchange[0], exchange[1]),
    }
