"""What checks said, as text for people and as values for programs. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

from kveik.doctor.check import Outcome, Point
from kveik.doctor.running import Answer
from kveik.telemetry.redaction import redacted

#: Outcomes that are told in full; of the others only the number and what they are about.
_TOLD = (Outcome.WRONG, Outcome.NOT_DONE, Outcome.BEWARE, Outcome.UNKNOWN)


def text_of(answer: Answer) -> Iterator[str]:
    """Lines for people: question and verdict, evidence, then each point, the worst first."""
    verdict = answer.verdict
    yield f"{answer.check.name}: {verdict.outcome.value}"
    yield f"   {answer.check.question}"
    if verdict.evidence:
        yield f"   looked at: {redacted('; '.join(verdict.evidence))}"
    for outcome in _TOLD:
        for point in (point for point in verdict.points if point.outcome is outcome):
            yield from _point_lines(point)
    if well := [point.about for point in verdict.points if point.outcome is Outcome.WELL]:
        yield f"   well: {', '.join(well)}"


def values_of(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "check": answer.check.name,
            "group": answer.check.group,
            "question": answer.check.question,
            "outcome": answer.verdict.outcome.value,
            "took_s": round(answer.took_s, 2),
            "evidence": [redacted(text) for text in answer.verdict.evidence],
            "points": [
                {
                    "outcome": point.outcome.value,
                    "about": point.about,
                    "told": redacted(point.told),
                    "remedy": point.remedy,
                    "source": point.source,
                }
                for point in answer.verdict.points
            ],
        }
        for answer in answers
    ]


def _point_lines(point: Point) -> Iterator[str]:
    yield f"   {point.outcome.value}: {point.about}: {redacted(point.told)}"
    if point.remedy:
        yield f"      do: {point.remedy}"
    if point.source:
        yield f"      source: {point.source}"
