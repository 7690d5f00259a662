"""The demonstration's result: a table, a JSON document, one sentence."""

import datetime
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from kveik.bench.demo import Demonstrated
from kveik.bench.machine import Machine
from kveik.bench.service import Outage
from kveik.bench.workload import Route, Row

SCHEMA = 2


def table(rows: Sequence[Row]) -> Table:
    """TTFT by prompt length and route, and whether all answers are equal."""
    shown = Table(
        title="Time to first token, medians; other engine and after kill -9: from the shared cache",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("prompt tokens", justify="right")
    for route in Route:
        shown.add_column(route.value, justify="right")
    shown.add_column("other engine against cold", justify="right")
    shown.add_column("all answers equal")
    for row in rows:
        shown.add_row(
            str(row.tokens),
            *(f"{row.ttft_s(route):.3f} s" for route in Route),
            f"{row.speedup(Route.OTHER):.1f} x faster",
            "yes" if row.equal else "NO",
        )
    return shown


def conclusion(rows: Sequence[Row]) -> str:
    """What the longest prompt shows, in plain words."""
    longest = rows[-1]
    equal = (
        "every answer had the same tokens as the cold one"
        if all(row.equal for row in rows)
        else "BUT SOME ANSWERS DIFFER FROM THE COLD ONE: do not use this cache"
    )
    return (
        f"A prompt of {longest.tokens} tokens had its first token after {longest.ttft_s(Route.COLD):.1f} s when it was "
        f"computed, and after {longest.ttft_s(Route.OTHER):.2f} s on another engine that never saw it, "
        f"{longest.speedup(Route.OTHER):.0f} times faster; after kill -9 and restart it took "
        f"{longest.ttft_s(Route.RESTART):.2f} s, and {equal}."
    )


def survived(outage: Outage) -> str:
    """What clients saw of the killed engine, in plain words."""
    tally = outage.tally
    told = f"{outage.engine} was killed with -9 under load and got requests again after {outage.back_s:.0f} s"
    asked, cuts = len(tally.asked), len(tally.cuts)
    if not outage.fine:
        return (
            f"{told}; BUT of {asked} requests {len(tally.lost)} FAILED, {cuts} streams were cut off and "
            f"{len(tally.wrong)} were answered otherwise than before: {(tally.lost + tally.wrong + tally.cuts)[0]}"
        )
    answered = f"all {asked} requests of the clients were answered"
    if cuts:
        answered = (
            f"of {asked} requests of the clients {cuts} ended with an error, since the engine had begun their answer, "
            "and all others were answered"
        )
    return f"{told}; {answered}, the slowest in {tally.slowest_s:.1f} s."


def document(found: Demonstrated, machine: Machine, model: str, date: datetime.datetime) -> dict[str, Any]:
    """The JSON document. Times in seconds."""
    rows, outage = found.rows, found.outage
    return {
        "schema": SCHEMA,
        "date": date.isoformat(timespec="seconds"),
        "machine": machine.document(),
        "model": model,
        "dtype": "float32",
        "conclusion": conclusion(rows),
        "outage": {
            "engine": outage.engine,
            "back_s": round(outage.back_s, 1),
            "requests": len(outage.tally.asked),
            "failed": len(outage.tally.lost),
            "cut": len(outage.tally.cuts),
            "wrong": len(outage.tally.wrong),
            "slowest_s": round(outage.tally.slowest_s, 3),
        },
        "rows": [
            {
                "prompt_tokens": row.tokens,
                "equal": row.equal,
                "routes": {
                    route.name.lower(): {
                        "ttft_s": round(measured.ttft_s, 4),
                        "runs_s": [round(value, 4) for value in measured.ttfts_s],
                        "hit_tokens": measured.hit_tokens,
                        "same_tokens": row.differences[route].same_ids,
                        "logprob_distance": row.differences[route].logprob,
                    }
                    for route, measured in row.measurements.items()
                },
            }
            for row in rows
        ],
    }
