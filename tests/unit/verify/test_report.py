"""The table for people and the document for machines."""

import io
import json
import math

import pytest
from rich.console import Console

from kveik.engine.metrics import TokenEvidence
from kveik.verify.legs import Leg, Mode
from kveik.verify.parity import Distance, float32_rule
from kveik.verify.prompts import Prompt
from kveik.verify.report import SHOWN_COMPLAINTS, WIDTH, conclusion, document, table
from kveik.verify.verdict import AnswerVerdict, LegVerdict, Verdict

PROMPT = Prompt("zh-300", "zh", tuple(range(300)))
SHARED = TokenEvidence(prompt=300, computed=44, external=256, used=256, loaded_blocks=2, compared_blocks=2)

CLOSE = Distance(1.5e-5)


def leg(*complaints: str, distance: Distance | None = CLOSE, kind: Leg = Leg.OTHER) -> LegVerdict:
    answer = AnswerVerdict(PROMPT, distance, text_equals_cold=True, ttft_s=0.25, cached_tokens=256)
    evidence = SHARED if kind.external else TokenEvidence(prompt=300, computed=300)
    return LegVerdict(kind, Mode.SINGLE, evidence, 256 if kind.external else 0, [answer], complaints)


def verdict(*legs: LegVerdict) -> Verdict:
    return Verdict({Mode.SINGLE: float32_rule()}, legs, (Leg.RESTART,))


def printed(shown: Verdict) -> str:
    out = io.StringIO()
    Console(file=out, width=WIDTH).print(table(shown))
    return out.getvalue()


def test_the_table_shows_where_tokens_came_from_and_what_was_compared() -> None:
    text = printed(verdict(leg(distance=None, kind=Leg.COLD), leg()))
    row = next(line for line in text.splitlines() if line.lstrip().startswith("other"))
    assert row.split() == ["other", "single", "44", "0", "256", "256", "2/2", "1/1", "1.5e-05", "250", "ms", "yes"]
    assert "left out on request: restart" in text
    assert "All 2 legs hold: 256 tokens came from the shared cache" in text


def test_no_line_of_the_table_is_wrapped_at_its_width() -> None:
    lines = printed(verdict(leg())).splitlines()
    assert sum(line.lstrip().startswith("leg ") for line in lines) == 1
    assert "holds" in next(line for line in lines if line.lstrip().startswith("leg "))


def test_what_does_not_hold_is_said_but_not_endlessly() -> None:
    text = printed(verdict(leg(*(f"zh-300: complaint {number}" for number in range(10)))))
    assert text.count("complaint") == SHOWN_COMPLAINTS
    assert f"and {10 - SHOWN_COMPLAINTS} more" in text
    assert "Do not serve from this cache" in text


@pytest.mark.parametrize(
    ("legs", "holds"),
    [((leg(),), True), ((leg(), leg("bad")), False), ((leg(kind=Leg.COLD, distance=None),), False), ((), False)],
)
def test_a_proof_holds_only_with_a_leg_over_the_shared_cache_and_no_complaint(
    legs: tuple[LegVerdict, ...], holds: bool
) -> None:
    assert verdict(*legs).holds is holds
    assert conclusion(verdict(*legs)).startswith("All") is holds


def test_the_document_is_json_even_with_infinite_distances() -> None:
    found = document(verdict(leg("far", distance=Distance(math.inf, 0))), {"model": "m"})
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["holds"] is False
    assert again["about"] == {"model": "m"}
    [only] = again["legs"]
    assert only["complaints"] == ["far"]
    assert only["tokens"]["external"] == only["tokens"]["expected_hits"] == 256
    assert only["answers"][0]["logprob_distance"] is None
    assert only["answers"][0]["diverged_at"] == 0


def test_the_document_states_the_rule_and_what_was_left_out() -> None:
    found = document(verdict(leg()), {})
    assert found["rules"]["single"]["reference"] == "cold"
    assert found["skipped"] == ["restart"]
    assert found["schema"] == 1
