"""A result for people: tables on the terminal and in Markdown, and pictures."""

from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.result import Claim, Group, Result, Verdict, compared, hit_tokens, side, sides, verdicts

Row = tuple[str, ...]
SAMPLES_HEADER: Row = ("workload", "what", "median", "lowest", "highest", "samples", "cached tokens")
#: What a claim takes of a picture's height.
CLAIM_INCHES = 0.36
CLAIMS_HEADER: Row = ("workload", "comparison", "median", "lowest", "highest", "rounds", "wanted", "holds")


def sample_rows(result: Result) -> list[Row]:
    """One row a side: what was measured."""
    return [
        (
            group.name,
            label,
            f"{number(side(group, label).median)} {group.unit}",
            number(side(group, label).low),
            number(side(group, label).high),
            str(side(group, label).count),
            hit_tokens(group, label),
        )
        for group in result.groups
        for label in sides(group)
    ]


def claim_rows(result: Result) -> list[Row]:
    """One row a claim: what was wanted and what came out."""
    return [_claim_row(verdict, result.group(verdict.claim.group).unit) for verdict in verdicts(result)]


def _claim_row(verdict: Verdict, unit: str) -> Row:
    claim, measured = verdict.claim, verdict.measured
    suffix = "" if claim.kind == "ratio" else f" {unit}"
    return (
        claim.group,
        comparison(claim),
        f"{number(measured.median)}{suffix}",
        number(measured.low),
        number(measured.high),
        str(measured.count),
        f"{claim.direction} {claim.bound:g}{suffix}",
        "yes" if verdict.holds else "NO",
    )


def comparison(claim: Claim) -> str:
    """What a claim looks at, in short."""
    if claim.kind == "value":
        return claim.first
    return f"{claim.first} {'/' if claim.kind == 'ratio' else '−'} {claim.second}"


def number(value: float) -> str:
    """A value with three figures or so."""
    size = abs(value)
    return (
        f"{value:.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3f}"
    )


def print_result(result: Result) -> None:
    """Both tables on the terminal."""
    console = Console(width=140)
    console.print(f"\n[bold]{result.benchmark}[/bold]: {result.question}")
    for header, rows in ((SAMPLES_HEADER, sample_rows(result)), (CLAIMS_HEADER, claim_rows(result))):
        table = Table(*header)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(f"others took up to {result.foreign_cores:.2f} cores while it was measured")


def markdown_table(header: Row, rows: list[Row]) -> str:
    """A Markdown table; numbers to the right."""
    lines = [header, tuple("---" if index < 2 else "---:" for index in range(len(header))), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot(result: Result, path: Path) -> None:
    """Curves over prompt lengths where there are some, else the comparisons of all rounds."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and only pictures need it

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    curves = all(group.tokens for group in result.groups)
    height = 4.8 if curves else max(4.8, CLAIM_INCHES * len(result.claims))
    figure, axes = plt.subplots(figsize=(8, height), layout="constrained")
    if curves:
        _plot_curves(axes, result.groups)
    else:
        _plot_comparisons(axes, result)
    axes.set_title(result.question, fontsize=10)
    axes.grid(visible=True, which="both", alpha=0.25)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _plot_curves(axes: Any, groups: list[Group]) -> None:
    """Median over prompt length for each side, with the extremes as bars; both axes logarithmic."""
    for label in sides(groups[0]):
        points = [(group.tokens, side(group, label)) for group in groups if label in sides(group)]
        medians = [summary.median for _, summary in points]
        bars = (
            [summary.median - summary.low for _, summary in points],
            [summary.high - summary.median for _, summary in points],
        )
        axes.errorbar([tokens for tokens, _ in points], medians, yerr=bars, marker="o", capsize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([group.tokens for group in groups], [str(group.tokens) for group in groups])
    axes.minorticks_off()
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("TTFT, s (median, lowest and highest)")
    axes.legend()


def _plot_comparisons(axes: Any, result: Result) -> None:
    """Each claim on a line of its own: all rounds as dots, their median, and the bound.

    Where values of several units stand among them, all are shown as multiples of their bounds.
    """
    relative = any(claim.kind == "value" for claim in result.claims)
    claims = [claim for claim in result.claims if claim.bound or not relative]
    for line, claim in enumerate(claims):
        scale = claim.bound if relative else 1.0
        values = [value / scale for value in compared(result.group(claim.group), claim)]
        axes.plot(values, [line] * len(values), "o", color="tab:blue", alpha=0.4)
        axes.plot([median(values)], [line], "|", color="black", markersize=22)
        axes.plot([claim.bound / scale], [line], "x", color="tab:red", markersize=9)
    names = [f"{claim.group}\n{comparison(claim)}, {claim.direction}{_bound(claim, result)}" for claim in claims]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(f"dots: rounds, line: their median, cross: the bound{', of which all are multiples' * relative}")
    if relative:
        axes.set_xscale("log")


def _bound(claim: Claim, result: Result) -> str:
    unit = "" if claim.kind == "ratio" else f" {result.group(claim.group).unit}"
    return f" {claim.bound:g}{unit}"
