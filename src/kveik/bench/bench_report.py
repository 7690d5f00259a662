"""What ``kveik bench`` shows: a table, one sentence, a JSON document."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich import box
from rich.table import Table

from kveik.bench.comparison import OFF, ON, Comparison, SideFigures
from kveik.bench.intervals import Estimate
from kveik.bench.machine import Machine
from kveik.bench.planned import Workload
from kveik.bench.run_findings import Grade
from kveik.bench.side_run import SideRun
from kveik.bench.vllm_serve import VllmFigures

SCHEMA = 1
_VLLM = "vllm bench serve"

#: How the intervals are made, for whoever reads the figures.
INTERVALS = (
    "95 %; of one side: order statistics over single requests; of gains and rates: Student's t over rounds "
    "(gains: of the logarithms of each round's ratio)"
)


@dataclass(frozen=True, kw_only=True)
class About:
    """What was measured, where, when and how. ``addresses`` and ``models`` by side."""

    date: datetime.datetime
    machine: Machine
    addresses: Mapping[str, str]
    models: Mapping[str, str]
    versions: Mapping[str, str]
    off_how: str
    cold_how: str
    rounds: int
    places: int
    per_s: float
    seed: int
    simulated: bool


def headline(found: Comparison, about: About) -> str:
    """What the figures are worth, in front of everything else."""
    what = "SIMULATED engines, nothing was computed by a model" if about.simulated else "measured"
    if found.grade is Grade.VOID:
        return f"VOID ({what}): {next(one.text for one in found.findings if one.grade is Grade.VOID)}"
    if found.grade is Grade.WARM:
        return f"WARM ({what}): {next(one.text for one in found.findings if one.grade is Grade.WARM)}"
    return f"cold at its start, {what}"


def table(found: Comparison, workload: Workload, vllm: VllmFigures | None = None) -> Table:
    """The figures: a column a side, and what the on side gains."""
    shown = Table(
        title=f"{workload.name}: {len(workload.requests)} requests a round, {workload.prompt_tokens} prompt tokens, "
        f"{workload.answer_tokens} answer tokens; in brackets 95 %",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("")
    for side in found.sides:
        shown.add_column(side.side, justify="right")
    if found.gains:
        shown.add_column("gain", justify="right")
    if vllm:
        shown.add_column(_VLLM, justify="right")
    for name, cell, gain, theirs in ROWS:
        cells = [cell(side) for side in found.sides]
        if not any(cells):
            continue
        if found.gains:
            cells.append(_times(found.gains[gain]) if gain in found.gains else "")
        if vllm:
            cells.append(theirs(vllm) if theirs else "")
        shown.add_row(name, *cells)
    return shown


def _seconds(one: Estimate | None) -> str:
    return "" if one is None else f"{one.value:.3f} s{_interval(one, '.3f')}"


def _rate(one: Estimate) -> str:
    return f"{one.value:.4g}{_interval(one, '.4g')}"


def _times(one: Estimate) -> str:
    return f"{one.value:.2f} x{_interval(one, '.2f')}"


def _interval(one: Estimate, form: str) -> str:
    if one.low is None and one.high is None:
        return ""
    low, high = ("?" if bound is None else f"{bound:{form}}" for bound in (one.low, one.high))
    return f" ({low} to {high})"


def _known(tokens: int) -> str:
    return "not known" if tokens < 0 else str(tokens)


def _cached(side: SideFigures) -> str:
    if side.cached_tokens < 0:
        return "not known"
    share = side.cached_tokens / max(1, side.prompt_tokens)
    return f"{side.cached_tokens} ({share:.0%})"


def _sources(side: SideFigures) -> str:
    if not side.computed_tokens + side.local_tokens + side.external_tokens:
        return ""
    return f"{side.computed_tokens} / {side.local_tokens} / {side.external_tokens}"


_Cell = Callable[[SideFigures], str]
_Theirs = Callable[[VllmFigures], str] | None
#: Name of a row, its cell for a side, the name of its gain, and its cell for vLLM's own benchmark.
ROWS: Sequence[tuple[str, _Cell, str, _Theirs]] = (
    ("requests answered", lambda side: str(side.requests), "", lambda theirs: str(theirs.completed)),
    ("TTFT, median", lambda side: _seconds(side.ttft_s), "ttft", None),
    ("TTFT, p90", lambda side: _seconds(side.ttft_p90_s), "ttft_p90", None),
    ("TTFT, p99", lambda side: _seconds(side.ttft_p99_s), "", None),
    ("TTFT from sending, median", lambda side: _seconds(side.sent_ttft_s), "", lambda theirs: f"{theirs.ttft_s:.3f} s"),
    ("TTFT of prompts with nothing to reuse", lambda side: _seconds(side.first_ttft_s), "", None),
    ("TTFT of prompts with something to reuse", lambda side: _seconds(side.repeat_ttft_s), "", None),
    (
        "a token after the first, median",
        lambda side: _seconds(side.token_s),
        "",
        lambda theirs: f"{theirs.token_s:.3f} s",
    ),
    ("whole answer, median", lambda side: _seconds(side.total_s), "", None),
    ("requests/s", lambda side: _rate(side.requests_per_s), "requests_per_s", lambda its: f"{its.requests_per_s:.4g}"),
    (
        "answer tokens/s",
        lambda side: _rate(side.answer_tokens_per_s),
        "answer_tokens_per_s",
        lambda its: f"{its.answer_tokens_per_s:.4g}",
    ),
    ("all tokens/s", lambda side: _rate(side.tokens_per_s), "", lambda its: f"{its.tokens_per_s:.4g}"),
    ("prompt tokens", lambda side: str(side.prompt_tokens), "", None),
    ("of these from a cache", _cached, "", None),
    ("could come from an empty one", lambda side: str(side.reusable_tokens), "", None),
    ("computed again all the same", lambda side: _known(side.recomputed_tokens), "", None),
    ("computed / local / external", _sources, "", None),
)


def conclusion(found: Comparison) -> str:
    """The result in plain words."""
    by_name = {side.side: side for side in found.sides}
    on, off = by_name.get(ON), by_name.get(OFF)
    if on is None:
        return "No request was answered."
    used = f"{_cached(on)} of {on.prompt_tokens} prompt tokens came from a cache"
    if off is None or "ttft" not in found.gains:
        return f"The first token came after {_seconds(on.ttft_s)} (median of {on.requests} requests); {used}."
    gain = found.gains["ttft"]
    sure = "one round, so nobody knows how sure that is" if gain.low is None else f"{on.rounds} rounds, 95 %:"
    between = "" if gain.low is None else f" {gain.low:.2f} to {gain.high:.2f}"
    return (
        f"With the cache the median time to the first token was {on.ttft_s.value:.3f} s instead of "
        f"{off.ttft_s.value:.3f} s, {gain.value:.2f} times as fast ({sure}{between}); {used}."
    )


def document(found: Comparison, workload: Workload, about: About, vllm: VllmFigures | None = None) -> dict[str, Any]:
    """The JSON document; docs/bench.md explains each name. Times in seconds."""
    return {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "simulated": about.simulated,
        "headline": headline(found, about),
        "conclusion": conclusion(found),
        "date": about.date.isoformat(timespec="seconds"),
        "machine": about.machine.document(),
        "workload": {
            "name": workload.name,
            "parameters": dict(workload.parameters),
            "requests": len(workload.requests),
            "prompt_tokens": workload.prompt_tokens,
            "answer_tokens": workload.answer_tokens,
            "seed": about.seed,
        },
        "how": {
            "addresses": dict(about.addresses),
            "models": dict(about.models),
            "versions": dict(about.versions),
            "off": about.off_how,
            "cold": about.cold_how,
            "rounds": about.rounds,
            "concurrency": about.places,
            "rate": about.per_s,
            "intervals": INTERVALS,
        },
        "sides": [_side(side) for side in found.sides],
        "gains": {name: gain.document() for name, gain in found.gains.items()},
        "findings": [finding.document() for finding in found.findings],
        "vllm_bench_serve": vllm.document() if vllm else None,
        "runs": [_run(run) for run in found.runs],
    }


def _side(side: SideFigures) -> dict[str, Any]:
    values = {field.name: getattr(side, field.name) for field in fields(side)}
    values["recomputed_tokens"] = side.recomputed_tokens
    return {name: value.document() if isinstance(value, Estimate) else value for name, value in values.items()}


def _run(run: SideRun) -> dict[str, Any]:
    """One run with each of its requests: what any other figure can be computed from."""
    began_s = min(outcome.intended_s for outcome in run.outcomes)
    return {
        "side": run.side,
        "round": run.round,
        "seconds": round(run.seconds, 4),
        "client_late_s": round(run.strain.late_s, 4),
        "client_busy": round(run.strain.busy, 3),
        "engines": list(run.counted.engines),
        "requests": [
            {
                "intended_s": round(outcome.intended_s - began_s, 4),
                "sent_s": round(outcome.sent_s - began_s, 4),
                "ttft_s": None if outcome.failure else round(outcome.ttft_s, 5),
                "over_s": round(outcome.over_s - began_s, 4),
                "prompt_tokens": outcome.prompt_tokens,
                "cached_tokens": outcome.cached_tokens,
                "reusable_tokens": reusable.earlier,
                "answer_tokens": len(outcome.token_ids),
                "failure": outcome.failure,
            }
            for outcome, reusable in zip(run.outcomes, run.reusable, strict=True)
        ],
    }
