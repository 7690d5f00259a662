"""The demonstration's plot. Needs matplotlib (extra ``plot``)."""

import datetime
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kveik.bench.machine import Machine
from kveik.bench.workload import Route, Row

_LOOKS = {
    Route.COLD: {"color": "#b03a2e", "marker": "o"},
    Route.LOCAL: {"color": "#7f8c8d", "marker": "s", "linestyle": "--"},
    Route.OTHER: {"color": "#1f618d", "marker": "^"},
    Route.RESTART: {"color": "#117864", "marker": "v", "linestyle": ":"},
}
_LABELS = {
    Route.COLD: "cold: computed",
    Route.LOCAL: "hit in the engine's own cache",
    Route.OTHER: "shared cache, engine that never saw the prompt",
    Route.RESTART: "shared cache, engine restarted after kill -9",
}


def draw(rows: Sequence[Row], file: Path, machine: Machine, model: str, date: datetime.datetime) -> None:
    """Write the plot as PNG: time to first token over prompt length, both axes logarithmic."""
    figure = Figure(figsize=(8, 5), dpi=144, layout="constrained")
    axes = figure.add_subplot()
    lengths = [row.tokens for row in rows]
    for route in Route:
        axes.plot(lengths, [row.ttft_s(route) for row in rows], label=_LABELS[route], **_LOOKS[route])  # type: ignore[arg-type]
    longest = rows[-1]
    axes.annotate(
        f"{longest.speedup(Route.OTHER):.0f} times faster",
        (longest.tokens, longest.ttft_s(Route.OTHER)),
        xytext=(0, 28),
        textcoords="offset points",
        ha="right",
        color="#1f618d",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.set_xlabel(f"prompt length, tokens\n\nmeasured {date:%Y-%m-%d} on {machine}")
    axes.set_ylabel("time to first token (median)")
    axes.set_title(f"One KV cache under two vLLM engines ({model}, float32)")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(file)
