"""The plot of ``kveik bench``. Needs matplotlib (extra ``plot``)."""

import textwrap
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from kveik.bench.bench_report import About, conclusion
from kveik.bench.comparison import OFF, ON, Comparison, SideFigures
from kveik.bench.planned import Workload
from kveik.bench.run_findings import Grade

_CAPTION_LETTERS = 150
_COLORS = {ON: "#1f618d", OFF: "#b03a2e"}
_LABELS = {ON: "on: with the cache", OFF: "off: without it"}
_SOURCES = (("computed", "#b03a2e"), ("local cache", "#7f8c8d"), ("external cache", "#1f618d"))
_STAMPS = {Grade.VOID: "VOID: see the findings", Grade.WARM: "WARM: the cache knew these prompts"}


def draw(found: Comparison, workload: Workload, about: About, file: Path) -> None:
    """Write the plot as PNG: how TTFTs are distributed, their quantiles with error bars, and where tokens came from."""
    figure = Figure(figsize=(9, 7), dpi=144, layout="constrained")
    above, quantiles, below = figure.subplots(3, 1, height_ratios=(3, 1.2, 1))
    quantiles.sharex(above)
    _distribution(above, found)
    _quantiles(quantiles, found)
    _tokens(below, found)
    what = "SIMULATED engines" if about.simulated else "measured"
    model = ", ".join(dict.fromkeys(about.models.values()))
    figure.suptitle(
        f"{workload.name}: {len(workload.requests)} requests a round, {about.rounds} rounds, {model} ({what})"
    )
    how = f"off: {about.off_how}; " if about.off_how else ""
    said = (conclusion(found), f"{how}cold: {about.cold_how}", f"{what} {about.date:%Y-%m-%d} on {about.machine}")
    figure.supxlabel("\n".join(line for text in said for line in textwrap.wrap(text, _CAPTION_LETTERS)), fontsize=7)
    if found.grade in _STAMPS:
        figure.text(
            0.5,
            0.55,
            _STAMPS[found.grade],
            ha="center",
            va="center",
            rotation=20,
            fontsize=34,
            color="#b03a2e",
            alpha=0.35,
        )
    figure.savefig(file)


def _distribution(axes: Axes, found: Comparison) -> None:
    """The share of requests whose first token had come: thick over all rounds, thin for each."""
    for side in found.sides:
        runs = [run for run in found.runs if run.side == side.side and run.answered]
        color = _COLORS[side.side]
        for run in runs if len(runs) > 1 else []:
            axes.ecdf(run.ttfts_s, color=color, alpha=0.25, linewidth=0.8)
        axes.ecdf(
            [ttft_s for run in runs for ttft_s in run.ttfts_s], color=color, linewidth=2, label=_LABELS[side.side]
        )
    axes.set_xlabel("time to first token, from the moment the request was due")
    axes.set_ylabel("share of requests")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.grid(visible=True, alpha=0.25)
    if found.sides:
        axes.legend(loc="best", fontsize="small")


def _quantiles(axes: Axes, found: Comparison) -> None:
    for place, side in enumerate(found.sides):
        for at, (name, marker, one) in enumerate(
            (("median", "o", side.ttft_s), ("p90", "^", side.ttft_p90_s), ("p99", "v", side.ttft_p99_s))
        ):
            low, high = (one.value if bound is None else bound for bound in (one.low, one.high))
            axes.errorbar(
                one.value,
                -place - 0.2 * at + 0.2,
                xerr=[[max(0.0, one.value - low)], [max(0.0, high - one.value)]],
                marker=marker,
                color=_COLORS[side.side],
                capsize=3,
                label=name if place == 0 else None,
            )
    _name_sides(axes, found)
    axes.set_xlabel("quantiles of the time to first token, with 95 % intervals over requests", fontsize="small")
    axes.grid(visible=True, axis="x", alpha=0.25)


def _name_sides(axes: Axes, found: Comparison) -> None:
    axes.set_yticks([-place for place in range(len(found.sides))], [side.side for side in found.sides])
    axes.set_ylim(-len(found.sides) + 0.4, 0.6)
    if found.sides:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize=7)


def _tokens(axes: Axes, found: Comparison) -> None:
    for place, side in enumerate(found.sides):
        left = 0
        for (label, color), tokens in zip(_SOURCES, _by_source(side), strict=True):
            axes.barh(-place, tokens, left=left, color=color, alpha=0.8, label=label if place == 0 else None)
            left += tokens
        axes.plot(
            [side.prompt_tokens - side.reusable_tokens] * 2, [-place - 0.4, -place + 0.4], color="black", linewidth=1
        )
    _name_sides(axes, found)
    axes.set_xlabel(
        "prompt tokens by source; right of the line: could come from a cache that began empty", fontsize="small"
    )


def _by_source(side: SideFigures) -> tuple[int, int, int]:
    """Computed, local, external; where only answers tell, all that is cached counts as local."""
    if side.computed_tokens + side.local_tokens + side.external_tokens:
        return side.computed_tokens, side.local_tokens, side.external_tokens
    cached = max(0, side.cached_tokens)
    return side.prompt_tokens - cached, cached, 0
