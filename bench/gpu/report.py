"""Writes docs/gpu.md and its figures from bench/results/*_h200.json: `python bench/gpu/report.py`. Measures nothing.

`--check` writes nothing and ends with status 1 if what is there is not what the results say. README's words on speed are those of `quotes`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import plots
import prediction
from prediction import Range, Results
from result import command_of

ROOT = Path(__file__).resolve().parents[2]
PAGE, FIGURES = Path("docs/gpu.md"), Path("docs/gpu")
NAMES = ("dense", "exchange", "experts", "index", "prompt", "round", "sampler", "step")
# TB/s of reading alone by the least number of distinct experts, of decoding alone, and how much longer than the longer one both may take.
BYTES_ONLY, DECODING_ONLY, OVER = {8: 2.8, 58: 3.8}, 2.0, 1.1
SLICE = "behind_0"
# Title of a figure, the bench that it shows, and what its command says beside the file.
SECTIONS = {
    "rounds": ("Rounds", "round", " --layers 45 --dense q4"),
    "shares": ("Where a round goes", "round", " --layers 45 --dense q4"),
    "experts": ("Experts", "experts", " --layers 12"),
    "dense": ("Dense products", "dense", ""),
    "index": ("Index and top-k", "index", ""),
    "sampler": ("Sampler", "sampler", ""),
    "prompt": ("Prompts", "prompt", " --layers 45 --dense bf16"),
}

TEXTS = {
    "rounds": """\
A round is {nodes} launches in one graph, idle for {idle} us at most. Weights drawn at random do not route evenly: at {rows} rows
products took as long as those of {like} distinct experts do, where even routing would choose {even}. The third
bar has the time of that many instead.""",
    "shares": """\
Kernels overlap; time counts for the one that began first. `product` is the experts', `rows_product` are dense matrices, head included.
The rest are small launches, whose number decides, not what they do.""",
    "experts": """\
TB/s count the trellis bytes of the distinct experts of a layer. Real time follows decoding: on this card instructions decide, not
memory.""",
    "dense": """\
The head stays in 8 bits where others are q4. At 1 row q4 reads half of what fp8 does and takes {least:.2f} to {most:.2f} of its time.""",
    "index": "Scores of all pools and the choice of 512, one layer. At short contexts the launches take the time, not the keys.",
    "sampler": "Token ids are compared with the plain sampler's first.",
    "prompt": """\
{launches:,} launches; {rate:,} tokens/s behind nothing, {longer:,} behind 28,672. What should make each kernel shorter:
[decisions/0015](decisions/0015-prompts-in-slices.md).""",
}


def load(root: Path) -> Results:
    """Results by bench."""
    return {name: json.loads((root / f"bench/results/{name}_h200.json").read_text(encoding="utf-8")) for name in NAMES}


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _range(bounds: Range) -> str:
    return f"{_ms(bounds[0])} to {_ms(bounds[1])}"


def _rows(count: str) -> str:
    return "1 row" if count == "1" else f"{count} rows"


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def asked_rounds(results: Results) -> Iterator[tuple[str, ...]]:
    for rows, one in results["round"]["rounds"].items():
        asked, even = one["floor_asked_ms"], prediction.even_ms(results, int(rows))
        if asked is not None:
            had = f"{_ms(one['round_ms'])} ms; {_ms(even)} with even routing, computed"
            told = "met as drawn, **missed** with even routing" if one["round_ms"] <= asked < even else _verdict(one["round_ms"] <= asked)
            yield f"round, {_rows(rows)}", f"{_ms(asked)} ms", had, told


def asked_experts(results: Results) -> Iterator[tuple[str, ...]]:
    found = results["experts"]["distinct_experts"]
    for part, name in {"gate_up": "gate and up", "down": "down"}.items():
        for label, least in BYTES_ONLY.items():
            reached = [one[part]["bytes_only"]["tb_per_s"] for key, one in found.items() if int(key) == label or int(key) >= label == 58]
            where = f"{label} distinct" + (" and more" if label == 58 else "")
            had = f"{min(reached):.2f}" + (f" to {max(reached):.2f}" if len(reached) > 1 else "") + " TB/s"
            yield f"experts, {name}, bytes only, {where}", f"{least} TB/s", had, _verdict(min(reached) >= least)
        decoding = {label: one[part]["alu_only"]["tb_per_s"] for label, one in found.items()}
        short = [label for label, reached in decoding.items() if reached < DECODING_ONLY]
        had = f"{min(decoding.values()):.2f} to {max(decoding.values()):.2f} TB/s"
        told = _verdict(not short) + (f" at {', '.join(short)}" if short else "")
        yield f"experts, {name}, decoding only", f"{DECODING_ONLY} TB/s", had, told
        over = [one[part]["real_over_limit"] for one in found.values()]
        had = f"{min(over)} to {max(over)} times"
        yield f"experts, {name}, real against the longer of both", f"{OVER} times", had, _verdict(max(over) <= OVER)


def asked_others(results: Results) -> Iterator[tuple[str, ...]]:
    took, asked = results["prompt"][SLICE]["chunk_ms"], results["prompt"]["asked_ms"]
    yield "slice of 4,096 prompt tokens", f"{asked:.0f} ms", f"{took:.0f} ms", _verdict(took <= asked)
    times = {
        (one["times"], f"{int(context) // 1024}K, {_rows(rows)}, {kv}")
        for kv in ("bf16", "fp8")
        for context, by_rows in results["index"][kv].items()
        for rows, one in by_rows.items()
    }
    (least, near), (most, far) = min(times), max(times)
    had = f"{least:.1f} times at {near}, to {most:.0f} at {far}"
    yield "index and top-k, 8K to 1M", "2 times the bytes' time", had, _verdict(most <= 2)
    within, modes = _modes(results)
    had = f"{len(within)} of {len(modes)} modes within it ({'; '.join(within)}); most {max(modes.values()):.0f} us"
    yield "sampler, 1 to 32 rows, every mode", f"{plots.ASKED_US:.0f} us", had, _verdict(len(within) == len(modes))
    yield "block of the drafter", "0.8 ms", "-", "not measured"


def _modes(results: Results) -> tuple[list[str], dict[str, float]]:
    """Modes of the sampler that stay within the bound, and the most microseconds of each."""
    modes: dict[str, float] = {}
    for name, by_rows in results["sampler"]["us"].items():
        mode = name.partition(";")[0]
        modes[mode] = max(modes.get(mode, 0.0), *by_rows.values())
    return [mode for mode, us in modes.items() if us <= plots.ASKED_US], modes


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def _figure(name: str, text: str) -> list[str]:
    title, bench, options = SECTIONS[name]
    file = f"{bench}_h200.json"
    source = f"`{command_of(bench, file)}{options}` makes [{file}](../bench/results/{file})."
    return ["", f"## {title}", "", f"![{title}](gpu/{name}.svg)", "", text, "", source]


def _measured(results: Results) -> list[str]:
    rounds, q4, fp8 = results["round"]["rounds"], results["dense"]["q4"], results["dense"]["fp8"]
    prompt, longer = results["prompt"][SLICE], results["prompt"]["behind_28672"]
    told = {
        "nodes": " or ".join(sorted({str(one["nodes"]) for one in rounds.values()})),
        "idle": max(one["idle_us"] for one in rounds.values()),
        "rows": ", ".join(rounds),
        "like": ", ".join(f"{prediction.distinct_like(results, int(rows)):.0f}" for rows in rounds),
        "even": ", ".join(f"{prediction.distinct(int(rows)):.0f}" for rows in rounds),
        "least": min(one["1"]["us"] / fp8[shape]["1"]["us"] for shape, one in q4.items()),
        "most": max(one["1"]["us"] / fp8[shape]["1"]["us"] for shape, one in q4.items()),
        "launches": prompt["launches"],
        "rate": prompt["tokens_per_s"],
        "longer": longer["tokens_per_s"],
    }
    lines = [line for name, text in TEXTS.items() for line in _figure(name, text.format(**told))]
    return [*lines, "", "## Sums of two ranks", "", _sums(results)]


def _sums(results: Results) -> str:
    found = results["exchange"]["one_process_two_streams"]["graph_of_90_bf16_by_bytes"]
    small, large = found["8192"]["us_each"], found["262144"]["us_each"]
    return (
        f"From card to card, both ranks on one card: {small} us at 8 KiB (1 row), {large} us at 256 KiB (32 rows), in a graph of 90, "
        f"{results['exchange']['two_processes']['sums']:,} sums of two processes as wanted "
        "([exchange_h200.json](../bench/results/exchange_h200.json), made by hand; `tests/gpu/test_peer_exchange.py` compares the sums)."
    )


HOW = """\
A range is (least, most). **Least**: bytes at {tb[0]} TB/s or, where that is longer, the H200's time by multiprocessors and clock ({h200}
at {h200_ghz} GHz there, {rtx} at {ghz[0]} here), one hidden behind the other. **Most**: bytes at {tb[1]} TB/s and what the H200's time
holds beyond its own bytes, at {ghz[1]} GHz and no faster for more multiprocessors, one after the other. By part:

- experts: bytes of as many distinct experts as even routing chooses, against decoding as measured alone; most with the share of bandwidth
  that reading alone reached on the H200, and with what real time took beyond the longer of both;
- dense matrices: {dense:.2f} GB a round; small launches: {small:.2f} GB and {stream:.2f} GB of states a stream, one stream up to 8 rows
  and four from 16; latents and index of a long context come on top;
- sums, {sums} a round: least our launch as measured on one card and {pcie[0]:.0f} GB/s, most NCCL's times on four such cards;
- two ranks whose sums pass from card to card capture their steps; through NCCL the host launches {nodes} and those of the sums, at
  {least:.0f} us each, published, to {most:.0f} us, as a step of 6 layers once took here (`q4` in
  [step_h200.json](../bench/results/step_h200.json), by a script of commit b5e2bec that is gone). The host works while the cards do.

Clocks, TFLOP/s at 300 W and PCIe are estimates or others' figures; each stands with its origin in `bench/gpu/prediction.py`. No kernel
has run on sm_120, where launch shapes are others and prompts use mma.sync instead of wgmma: surprises there are in no range."""


def _predicted(results: Results) -> list[str]:
    counts = [int(rows) for rows in results["round"]["rounds"]]
    rounds = {rows: prediction.rounds(results, rows) for rows in counts}
    parts = {rows: prediction.round_parts(results, rows) for rows in counts}
    how = HOW.format(
        tb=prediction.RTX_PRO.tb_per_s, ghz=prediction.RTX_PRO.ghz, rtx=prediction.RTX_PRO.multiprocessors,
        h200=prediction.H200.multiprocessors, h200_ghz=prediction.H200.ghz[0], dense=prediction.dense_bytes(results) / 1e9,
        small=prediction.SMALL_BYTES / 1e9, stream=prediction.STREAM_BYTES / 1e9, sums=prediction.SUMS, pcie=prediction.PCIE_GB_PER_S,
        nodes=results["round"]["rounds"]["1"]["nodes"], least=prediction.LEAST_LAUNCH_US, most=prediction.host_launch_us(results),
    )  # fmt: skip
    slice_parts = prediction.prompt_parts(results)
    least, most = prediction.added(*slice_parts.values())
    by_rows = []
    for rows in counts:
        bytes_ms, sums = prediction.bytes_ms(results, rows), prediction.exchange_ms(results, rows)
        by_rows.append([str(rows), _ms(bytes_ms), *map(_range, rounds[rows].values()), _range(sums)])
    return [
        "", "## Predicted: RTX PRO 6000", "",
        "Nothing here was measured on such a card. Milliseconds of a round behind a short context, q4, even routing:", "",
        "![Predicted rounds](gpu/predicted.svg)", "",
        *_table(["rows", "bytes alone", "one card", "two, sums from card to card", "two, through NCCL", "of both, sums"], by_rows), "",
        "Parts of one card's:", "",
        *_table(["rows", *parts[1]], [[str(rows), *map(_range, parts[rows].values())] for rows in counts]), "",
        how, "",
        f"A slice of 4,096 prompt tokens on two cards, bf16: {_range((least, most))} ms, {prediction.SLICE / most * 1e3:,.0f} to "
        f"{prediction.SLICE / least * 1e3:,.0f} tokens/s ({'; '.join(f'{name} {_range(one)}' for name, one in slice_parts.items())}).",
        "Products by TFLOP/s, decoding by multiprocessors and clock, nothing hidden behind the exchange.",
    ]  # fmt: skip


def page(results: Results) -> str:
    """docs/gpu.md."""
    lines = [
        "# Speed on a GPU", "",
        "Generated by `python bench/gpu/report.py` from `bench/results/*_h200.json`: one H200, one rank of two at the real shapes, drawn",
        "weights. Results made before the suite was do not name their commit: `git log -- bench/results` does.", "",
        f"All of it anew, kernels compiled and checked first: `{command_of('suite', '')}`. Commands run in the",
        "repository's folder.", "",
        "## Asked and had", "",
        *_table(["", "asked", "had", ""], [*asked_rounds(results), *asked_others(results), *asked_experts(results)]),
        *_measured(results), *_predicted(results),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def quotes(results: Results) -> Iterator[str]:
    """What README's status table says of speed."""
    rows = ("1", "8", "32")
    found = [results["round"]["rounds"][one] for one in rows]
    had, asked = (", ".join(_ms(one[key]) for one in found) for key in ("round_ms", "floor_asked_ms"))
    even = ", ".join(_ms(prediction.even_ms(results, int(one))) for one in rows)
    yield f"a round of {', '.join(rows)} rows {had} ms, with even routing {even}, computed; asked {asked}"
    within, modes = _modes(results)
    yield f"{len(within)} of {len(modes)} modes within the {plots.ASKED_US:.0f} us asked, most {max(modes.values()):.0f}"
    yield f"{results['prompt'][SLICE]['chunk_ms']:.0f} ms a slice, {results['prompt']['asked_ms']:.0f} asked"
    rounds = [prediction.rounds(results, int(one)) for one in rows]
    alone = ", ".join(_range(one["one"]) for one in rounds)
    yield f"predicted for one: a round of {', '.join(rows)} rows {alone} ms"
    launched, captured = _range(rounds[0]["launched"]), _range(rounds[0]["captured"])
    yield f"predicted: a round of 1 row {captured} ms with sums from card to card, {launched} through NCCL"
    few, many = (_range(prediction.exchange_ms(results, count)) for count in (1, 32))
    yield f"predicted: {few} ms a round of 1 row, {many} of 32"
    yield f"predicted: {_range(prediction.added(*prediction.prompt_parts(results).values()))} ms a slice"


def documents(results: Results) -> dict[Path, str]:
    """Every generated file by its place in the repository."""
    return {PAGE: page(results)} | {FIGURES / f"{name}.svg": plots.svg(draw, results) for name, draw in plots.FIGURES.items()}


def findings(root: Path) -> Iterator[str]:
    """What of the tree at `root` is not what its results say."""
    results = load(root)
    wanted = documents(results)
    for place, text in wanted.items():
        if not (root / place).is_file() or (root / place).read_text(encoding="utf-8") != text:
            yield f"{place} is not what bench/results says: python bench/gpu/report.py"
    for place in sorted((root / FIGURES).glob("*")):
        if place.relative_to(root) not in wanted:
            yield f"{place.relative_to(root)} is a figure of nothing: remove it"
    readme = (root / "README.md").read_text(encoding="utf-8")
    yield from (f"README.md does not say: {quote}" for quote in quotes(results) if quote not in readme)


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        (ROOT / FIGURES).mkdir(exist_ok=True)
        for place, text in documents(load(ROOT)).items():
            (ROOT / place).write_text(text, encoding="utf-8")
    found = list(findings(ROOT))
    print("\n".join(found) or "docs/gpu.md is what bench/results says")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
