"""The plot of ``kveik breakeven``. Needs matplotlib (extra ``plot``)."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kveik.bench.breakeven import LENGTHS, EngineCurves

_COMPUTE = "#b03a2e"
_LOADS = ("#1f618d", "#117864", "#7d3c98", "#b7950b", "#566573")


def draw(engine: EngineCurves, file: Path) -> None:
    """Write the curves of one engine as PNG, both axes logarithmic, a band of one standard deviation around each."""
    figure = Figure(figsize=(8, 5), dpi=144, layout="constrained")
    axes = figure.add_subplot()
    curves = [("computed", engine.compute, _COMPUTE)]
    curves += [
        (f"loaded from {tier}", load, color)
        for (tier, load), color in zip(engine.loads.items(), _LOADS * 4, strict=False)
    ]
    for label, curve, color in curves:
        axes.plot(LENGTHS, [curve.at(tokens) for tokens in LENGTHS], label=label, color=color)
        low, high = ([curve.at(tokens, sigmas) for tokens in LENGTHS] for sigmas in (-1.0, 1.0))
        axes.fill_between(LENGTHS, low, high, color=color, alpha=0.15, linewidth=0)
    for (_, found), (_, _, color) in zip(engine.crossings().items(), curves[1:], strict=True):
        if found.tokens is not None and found.tokens > LENGTHS[0]:
            axes.axvline(found.tokens, color=color, linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(LENGTHS, [f"{length // 1024}k" if length >= 1024 else str(length) for length in LENGTHS])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.set_xlabel("prompt length, tokens")
    axes.set_ylabel("seconds, as learned")
    axes.set_title(f"Load or compute: {engine.label}, process {engine.pid}")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(file)
