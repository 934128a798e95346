"""Figures of docs/gpu.md from results and predictions. Knows what to draw, nothing of measuring; the same results give the same bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import prediction
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from prediction import Results

# Text stays text: smaller files, and figures can be searched.
STYLE: dict[Any, Any] = {"svg.hashsalt": "gpu", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9.0, "axes.grid": True,
         "axes.axisbelow": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
FORMS = {"bf16": "bf16", "fp8": "fp8", "q4": "q4", "library_bf16": "library, bf16"}
ASKED_US = 150.0


def _figure(columns: int = 1, width: float = 8.0, height: float = 3.4, shared: bool = True) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, sharey=shared, squeeze=False)[0])


def _bars(axes: Axes, labels: Sequence[str], groups: Mapping[str, Sequence[float]]) -> None:
    """Bars side by side, a group a label; what a group lacks is NaN."""
    width = 0.8 / len(groups)
    for at, (name, values) in enumerate(groups.items()):
        places = [place + (at - (len(groups) - 1) / 2) * width for place in range(len(labels))]
        axes.bar(places, values, width, label=name)
    axes.set_xticks(range(len(labels)), labels)


def _rows(count: str) -> str:
    return "1 row" if count == "1" else f"{count} rows"


def rounds(results: Results) -> Figure:
    """Time of a round against the bound asked for, by rows."""
    figure, (axes,) = _figure()
    found = results["round"]["rounds"]
    asked = [found[rows]["floor_asked_ms"] or float("nan") for rows in found]
    groups = {
        "measured": [one["round_ms"] for one in found.values()],
        "of it the graph": [one["graph_ms"] for one in found.values()],
        "with even routing (computed)": [prediction.even_ms(results, int(rows)) for rows in found],
        "asked": asked,
    }
    _bars(axes, list(found), groups)
    axes.set(xlabel="rows", ylabel="ms a round", title="One rank of two, 45 layers, q4, one H200")
    axes.legend()
    return figure


def shares(results: Results) -> Figure:
    """Each kernel's share of a round, by rows."""
    figure, (axes,) = _figure(height=4.2)
    found = results["round"]["rounds"]
    names = list(dict.fromkeys(name for one in found.values() for name in one["share"]))
    bottom = [0.0] * len(found)
    for name, colour in zip(names, mpl.colormaps["tab20"].colors, strict=False):  # type: ignore[attr-defined]
        values = [100 * one["share"].get(name, 0.0) for one in found.values()]
        axes.bar(list(found), values, 0.7, bottom=bottom, label=name, color=colour)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axes.set(xlabel="rows", ylabel="% of a replay", ylim=(0, 100), title="Share of each kernel in a round")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def experts(results: Results) -> Figure:
    """TB/s of trellis by distinct experts: real, bytes only, decoding only."""
    parts = {"gate_up": "gate and up", "down": "down", "call": "whole call, 5 launches"}
    figure, panels = _figure(len(parts))
    found = results["experts"]["distinct_experts"]
    for axes, (part, title) in zip(panels, parts.items(), strict=True):
        for variant, name in {"bytes_only": "bytes only", "alu_only": "decoding only", "real": "real"}.items():
            axes.plot([one["distinct_per_layer"] for one in found.values()], [one[part][variant]["tb_per_s"] for one in found.values()],
                      marker="o", markersize=3, label=name)  # fmt: skip
        axes.plot([8, 58, 58, 171], [2.8, 2.8, 3.8, 3.8], color="tab:blue", linestyle=":", label="bytes only, asked")
        axes.axhline(2.0, color="tab:orange", linestyle=":", label="decoding only, asked")
        axes.set(xlabel="distinct experts", title=title, ylim=(0, 4.6))
    panels[0].set_ylabel("TB/s of trellis")
    panels[0].legend(fontsize=7, loc="lower right")
    return figure


def dense(results: Results) -> Figure:
    """Microseconds of dense products by shape, form and rows."""
    figure, panels = _figure(2, width=11.0, height=4.0)
    shapes = list(results["dense"]["bf16"])
    for axes, rows in zip(panels, ("1", "32"), strict=True):
        nothing = {rows: {"us": float("nan")}}
        groups = {name: [results["dense"][form].get(shape, nothing)[rows]["us"] for shape in shapes] for form, name in FORMS.items()}
        _bars(axes, shapes, groups)
        axes.tick_params(axis="x", rotation=60)
        axes.set(yscale="log", title=_rows(rows))
    panels[0].set_ylabel("us a product")
    panels[0].legend()
    return figure


def index(results: Results) -> Figure:
    """Microseconds of scores and top-k by context, against twice the bytes' time."""
    figure, panels = _figure(2)
    for axes, kv in zip(panels, ("bf16", "fp8"), strict=True):
        found = results["index"][kv]
        contexts = [int(context) for context in found]
        for rows in found[str(contexts[0])]:
            axes.plot(contexts, [one[rows]["us"] for one in found.values()], marker="o", markersize=3, label=_rows(rows))
        asked = [2 * one["1"]["byte_us"] for one in found.values()]
        axes.plot(contexts, asked, color="black", linestyle=":", label="asked: twice the bytes' time")
        axes.set(xscale="log", yscale="log", xlabel="tokens of context", title=f"keys in {kv}")
        axes.set_xticks(contexts, [f"{context // 1024}K" for context in contexts])
        axes.minorticks_off()
    panels[0].set_ylabel("us a layer")
    panels[0].legend()
    return figure


def sampler(results: Results) -> Figure:
    """Microseconds of a draw by mode and rows."""
    figure, (axes,) = _figure(height=5.0)
    times = {name.removesuffix("; bf16"): one for name, one in results["sampler"]["us"].items() if name.endswith("; bf16")}
    for place, one in enumerate(times.values()):
        for at, rows in enumerate(("1", "8", "32")):
            axes.barh(place + (at - 1) * 0.27, one[rows], 0.27, color=f"C{at}", label=_rows(rows) if place == 0 else None)
    axes.axvline(ASKED_US, color="black", linestyle=":", label="asked at most")
    axes.set_yticks(range(len(times)), list(times))
    axes.invert_yaxis()
    axes.set(xlabel="us a launch, 154,880 tokens, bf16 logits")
    axes.legend()
    return figure


def prompt(results: Results) -> Figure:
    """Milliseconds of a slice by kernel, behind nothing and behind much."""
    figure, (axes,) = _figure(height=4.6)
    behind = {"behind_0": "behind nothing", "behind_28672": "behind 28,672 tokens"}
    kernels = {name: short_kernels(results["prompt"][name]["kernels_ms"]) for name in behind}
    names = list(kernels["behind_0"])
    for at, (key, title) in enumerate(behind.items()):
        axes.barh([place + (at - 0.5) * 0.4 for place in range(len(names))], [kernels[key][name] for name in names], 0.4, label=title)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    total = results["prompt"]["behind_0"]["chunk_ms"]
    axes.set(xlabel="ms", title=f"4,096 tokens, 45 layers, bf16, one H200: {total:.0f} ms behind nothing")
    axes.legend()
    return figure


def short_kernels(found: dict[str, float], least_ms: float = 1.5) -> dict[str, float]:
    """The library's kernels together, small ones together, the rest by name."""
    parts: dict[str, float] = {}
    for name, ms in found.items():
        own = "library products" if name.startswith(prediction.LIBRARY) else name if "::" not in name else "element by element"
        parts[own] = parts.get(own, 0.0) + ms
    large = {name: ms for name, ms in sorted(parts.items(), key=lambda pair: -pair[1]) if ms >= least_ms}
    return large | {"others": sum(parts.values()) - sum(large.values())}


def predicted(results: Results) -> Figure:
    """Rounds as predicted for the cards that were not here, from least to most, beside the H200's."""
    figure, (axes,) = _figure(height=3.8)
    rows = list(results["round"]["rounds"])
    kinds = {"one": "one RTX PRO 6000", "captured": "two, sums from card to card", "launched": "two, through NCCL"}
    for at, (kind, title) in enumerate(kinds.items()):
        found = [prediction.rounds(results, int(count))[kind] for count in rows]
        places = [place + (at - 1) * 0.25 for place in range(len(rows))]
        axes.bar(places, [most - least for least, most in found], 0.23, bottom=[least for least, _ in found], label=title)
    marks = {"one H200, even routing": ("k_", prediction.even_ms), "bytes alone, RTX PRO 6000": ("r_", prediction.bytes_ms)}
    for title, (mark, ms) in marks.items():
        axes.plot(range(len(rows)), [ms(results, int(count)) for count in rows], mark, markersize=26, label=title)
    axes.set_xticks(range(len(rows)), rows)
    axes.set(xlabel="rows", ylabel="ms a round, least to most", ylim=(0, 60))
    axes.legend(ncols=2, loc="upper left")
    return figure


FIGURES: dict[str, Callable[[Results], Figure]] = {
    "rounds": rounds, "shares": shares, "experts": experts, "dense": dense, "index": index, "sampler": sampler, "prompt": prompt,
    "predicted": predicted,
}  # fmt: skip


def svg(draw: Callable[[Results], Figure], results: Results) -> str:
    """The figure as text, without a date or the name of a program."""
    sink = io.StringIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        draw(results).savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    # A hundredth of a point: what another processor rounds otherwise must not show.
    text = re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", sink.getvalue())
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
