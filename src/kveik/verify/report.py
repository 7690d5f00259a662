"""The proof's result as a table for people and as a JSON document for machines."""

import datetime
import math
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kveik.verify.legs import Leg
from kveik.verify.verdict import LegVerdict, Verdict

SCHEMA = 1
#: Characters that a line of the table needs.
WIDTH = 118
#: More complaints than this a leg are counted, not shown; the JSON has them all.
SHOWN_COMPLAINTS = 4


def table(verdict: Verdict) -> RenderableType:
    """One row a leg and mode, then what does not hold, the rules, and one line in plain words."""
    prompts = max((len(leg.answers) for leg in verdict.legs), default=0)
    rows = Table(
        title=f"Does a hit give what a cold run gives? {prompts} prompts a leg",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        caption="computed, local, shared: where prompt tokens came from; due: hit tokens expected",
        caption_justify="left",
    )
    rows.add_column("leg")
    rows.add_column("mode")
    for heading in ("computed", "local", "shared", "due", "read back", "same ids", "max |Δlogprob|", "TTFT"):
        rows.add_column(heading, justify="right")
    rows.add_column("holds")
    for leg in verdict.legs:
        rows.add_row(*_cells(leg))
    lines: list[RenderableType] = [rows]
    for leg in verdict.legs:
        lines += [Text(line, style="red") for line in _complaint_lines(leg)]
    lines += [Text(f"rule, {mode.value}: {rule.why}") for mode, rule in verdict.rules.items()]
    if verdict.skipped:
        lines.append(Text(f"left out on request: {', '.join(leg.value for leg in verdict.skipped)}"))
    lines.append(Text(conclusion(verdict), style="bold green" if verdict.holds else "bold red"))
    return Group(*lines)


def conclusion(verdict: Verdict) -> str:
    """The verdict in one sentence."""
    external = sum(leg.evidence.external for leg in verdict.legs)
    if verdict.holds:
        return f"All {len(verdict.legs)} legs hold: {external} tokens came from the shared cache."
    failed = sum(1 for leg in verdict.legs if not leg.holds)
    if not failed:
        return "Nothing failed, but no leg used the shared cache: nothing is proved."
    return f"{failed} of {len(verdict.legs)} legs do NOT hold. Do not serve from this cache."


def _cells(leg: LegVerdict) -> list[str]:
    found = leg.evidence
    prompts = len(leg.answers)
    reference = leg.leg is Leg.COLD
    return [
        leg.leg.value,
        leg.mode.value,
        str(found.computed),
        str(found.local),
        str(found.external),
        str(leg.expected_hits),
        f"{found.compared_blocks - found.mismatched_blocks}/{found.compared_blocks}" if leg.leg.external else "",
        "" if reference else f"{leg.same_ids}/{prompts}",
        "" if leg.largest_distance is None else f"{leg.largest_distance:.2g}",
        f"{leg.median_ttft_s * 1000:.0f} ms",
        "yes" if leg.holds else "NO",
    ]


def _complaint_lines(leg: LegVerdict) -> list[str]:
    shown = [f"{leg.leg.value}, {leg.mode.value}: {text}" for text in leg.complaints[:SHOWN_COMPLAINTS]]
    hidden = len(leg.complaints) - len(shown)
    return [*shown, f"{leg.leg.value}, {leg.mode.value}: and {hidden} more"] if hidden > 0 else shown


def document(verdict: Verdict, about: dict[str, Any]) -> dict[str, Any]:
    """The JSON document. ``about`` says what was tested (engines, model, dtype, versions)."""
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "holds": verdict.holds,
        "conclusion": conclusion(verdict),
        "about": about,
        "rules": {
            mode.value: {
                "reference": rule.reference,
                "bound": rule.bound,
                "same_ids": rule.same_ids,
                "why": rule.why,
            }
            for mode, rule in verdict.rules.items()
        },
        "skipped": [leg.value for leg in verdict.skipped],
        "legs": [_leg_document(leg) for leg in verdict.legs],
    }


def _leg_document(leg: LegVerdict) -> dict[str, Any]:
    found = leg.evidence
    return {
        "leg": leg.leg.value,
        "mode": leg.mode.value,
        "holds": leg.holds,
        "complaints": list(leg.complaints),
        "tokens": {
            "prompt": found.prompt,
            "computed": found.computed,
            "local": found.local,
            "external": found.external,
            "used": found.used,
            "expected_hits": leg.expected_hits,
        },
        "blocks": {
            "loaded": found.loaded_blocks,
            "failed": found.failed_blocks,
            "read_back": found.compared_blocks,
            "mismatched": found.mismatched_blocks,
        },
        "answers": [
            {
                "prompt": answer.prompt.name,
                "prompt_tokens": answer.prompt.tokens,
                "cached_tokens": answer.cached_tokens,
                "ttft_s": round(answer.ttft_s, 4),
                "text_equals_cold": answer.text_equals_cold,
                # JSON has no infinity: null means that the token was not among the candidates.
                "logprob_distance": _finite(answer.distance.logprob) if answer.distance else 0.0,
                "diverged_at": answer.distance.diverged_at if answer.distance else None,
            }
            for answer in leg.answers
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
