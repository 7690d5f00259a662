"""What was found in a log, as text for people and as values for programs. Pure."""

from collections.abc import Iterator
from typing import Any

from kveik.doctor.log_dictionary import Entry
from kveik.doctor.log_ranking import Finding, Ranked
from kveik.doctor.log_scan import Group, LogScan, Sighting
from kveik.telemetry.redaction import redacted

_UNKNOWN_SHOWN = 20
_QUOTE_CHARS = 240


def text_of(name: str, scan: LogScan, ranked: Ranked) -> Iterator[str]:
    """Lines for people: a summary, causes with what followed from them, then what is not known."""
    yield summary(name, scan, ranked)
    shown = {finding.entry.id: finding for finding in ranked.findings}
    causes = [finding for finding in ranked.findings if not finding.because_of]
    for number, finding in enumerate(causes, 1):
        yield ""
        yield from _cause_lines(number, finding)
        for id_ in finding.followed_by:
            yield f"   then: {shown[id_].entry.meaning} ({id_}, {_where(shown[id_].group)})"
    if ranked.unknown:
        yield ""
        yield from _unknown_lines(scan, ranked)


def summary(name: str, scan: LogScan, ranked: Ranked) -> str:
    """One line: how much was read, and what came of it."""
    read = f"{name}: {scan.lines:,} lines"
    if not ranked.findings and not ranked.unknown:
        return f"{read}; nothing found that is known to be wrong{_warnings(scan)}"
    unknown = sum(group.count for group in ranked.unknown) + scan.unknown_more
    known = f"{len(ranked.findings)} kind(s) of known lines" if ranked.findings else "nothing known"
    return f"{read}; {known}, {unknown} unknown fault(s){_warnings(scan)}"


def told(group: Group) -> str:
    """One line for a group that just appeared or grew, for who follows a log."""
    times = f" ({group.count} times)" if group.count > 1 else ""
    at = f"line {group.last.line}"
    if group.entry is None:
        return f"{at}: unknown{times}: {_quoted(group.last)}"
    entry = group.entry
    return f"{at}: {entry.severity.value}{times}: {entry.meaning} {entry.remedy} ({entry.id})"


def is_worth_telling(group: Group) -> bool:
    """Whether who follows a log wants to hear of a group again: at its 1st, 10th, 100th, ... line."""
    return str(group.count).rstrip("0") == "1"


def values_of(name: str, scan: LogScan, ranked: Ranked) -> dict[str, Any]:
    """The same for programs."""
    return {
        "log": name,
        "lines": scan.lines,
        "trouble": ranked.has_trouble,
        "findings": [_finding_values(finding) for finding in ranked.findings],
        "unknown": [_group_values(group) for group in ranked.unknown],
        "unknown_first": ranked.unknown_first,
        "unknown_more": scan.unknown_more,
        "unknown_warnings": scan.warnings,
    }


def _cause_lines(number: int, finding: Finding) -> Iterator[str]:
    entry, group = finding.entry, finding.group
    yield f"{number}. {entry.severity.value}, {entry.product}: {entry.meaning}"
    yield f"   seen: {_where(group)}{_by(group)}"
    yield f"   line {group.first.line}: {_quoted(group.first)}"
    yield from (f"   {'likely' if rank == 0 else 'or'}: {cause}" for rank, cause in enumerate(entry.causes))
    yield f"   do: {entry.remedy}"
    yield f"   source: {entry.source} ({entry.id})"


def _unknown_lines(scan: LogScan, ranked: Ranked) -> Iterator[str]:
    first = " The first of them may be the cause of what is known." if ranked.unknown_first else ""
    yield f"unknown, so not explained:{first}"
    for group in ranked.unknown[:_UNKNOWN_SHOWN]:
        yield f"   {_where(group)}{_by(group)}: {_quoted(group.first)}"
    more = len(ranked.unknown) - _UNKNOWN_SHOWN
    if more > 0 or scan.unknown_more:
        yield f"   and {max(more, 0)} more kinds, {scan.unknown_more} more lines (--json shows the kinds)"


def _where(group: Group) -> str:
    first = f"line {group.first.line}{_at(group.first)}"
    if group.count == 1:
        return first
    return f"{group.count:,} times, {first} to line {group.last.line}{_at(group.last)}"


def _at(sighting: Sighting) -> str:
    return f" at {sighting.time}" if sighting.time else ""


def _by(group: Group) -> str:
    return f", by {', '.join(group.processes)}" if group.processes else ""


def _warnings(scan: LogScan) -> str:
    return f"; {scan.warnings} warning(s) that are not known" if scan.warnings else ""


def _quoted(sighting: Sighting) -> str:
    text = redacted(sighting.text)
    return text if len(text) <= _QUOTE_CHARS else f"{text[:_QUOTE_CHARS]}..."


def _finding_values(finding: Finding) -> dict[str, Any]:
    entry: Entry = finding.entry
    return {
        "id": entry.id,
        "product": entry.product,
        "severity": entry.severity.value,
        "meaning": entry.meaning,
        "causes": list(entry.causes),
        "remedy": entry.remedy,
        "source": entry.source,
        "because_of": finding.because_of,
        "followed_by": finding.followed_by,
        **_group_values(finding.group),
    }


def _group_values(group: Group) -> dict[str, Any]:
    return {
        "count": group.count,
        "first": _sighting_values(group.first),
        "last": _sighting_values(group.last),
        "processes": group.processes,
    }


def _sighting_values(sighting: Sighting) -> dict[str, Any]:
    return {"line": sighting.line, "time": sighting.time, "text": redacted(sighting.text)}
