"""Which of the things found in a log came first, and which of them only followed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kveik.doctor.log_dictionary import Entry, Severity
from kveik.doctor.log_scan import Group, LogScan

#: Processes write at once, so a cause may stand some lines below its consequence.
_DISORDER_LINES = 200
_RANK = {Severity.FATAL: 0, Severity.ERROR: 0, Severity.WARNING: 2, Severity.NOTE: 3}


@dataclass(slots=True)
class Finding:
    """One kind of line that was found. ``because_of``: id of the entry that it follows from, or empty."""

    entry: Entry
    group: Group
    because_of: str = ""
    followed_by: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ranked:
    """What was found in a log. ``findings``: likely causes before what follows from them, first faults first.

    ``unknown``: faults that no entry knows, by their first line. ``unknown_first``: the first of them may be the cause
    of what is known: it stands above all other causes.
    """

    findings: Sequence[Finding]
    unknown: Sequence[Group]
    unknown_first: bool

    @property
    def has_trouble(self) -> bool:
        """Whether anything but notes was found."""
        return bool(self.unknown) or any(finding.entry.severity is not Severity.NOTE for finding in self.findings)


def rank(scan: LogScan) -> Ranked:
    """Order what a scan found."""
    findings = {id_: Finding(group.entry, group) for id_, group in scan.found.items() if group.entry}
    for finding in findings.values():
        finding.because_of = _named_cause(finding, findings, weak=False)
    for finding in findings.values():
        if finding.entry.symptom and not finding.because_of:
            finding.because_of = _nearest_fault(finding, findings) or _named_cause(finding, findings, weak=True)
    for id_, finding in findings.items():
        if finding.because_of:
            findings[_root(id_, findings)].followed_by.append(id_)
    ordered = sorted(findings.values(), key=_order)
    unknown = sorted(scan.unknown.values(), key=lambda group: group.first.line)
    faults = [found.group.first.line for found in ordered if found.entry.is_fault and not found.entry.symptom]
    consequences = any(found.entry.symptom and not found.because_of for found in ordered)
    first = bool(unknown) and (unknown[0].first.line < min(faults) if faults else consequences)
    return Ranked(ordered, unknown, first)


def _order(finding: Finding) -> tuple[bool, int, int]:
    rank_ = _RANK[finding.entry.severity] + (1 if finding.entry.symptom and finding.entry.is_fault else 0)
    return bool(finding.because_of), rank_, finding.group.first.line


def _named_cause(finding: Finding, findings: Mapping[str, Finding], *, weak: bool) -> str:
    """The earliest of the findings whose entry says that this one follows from it, if it did not come long after."""
    causes = [
        (other.group.first.line, id_)
        for id_, other in findings.items()
        if finding.entry.id in other.entry.explains and other.entry.is_weak_cause is weak and _before(other, finding)
    ]
    return min(causes)[1] if causes else ""


def _nearest_fault(finding: Finding, findings: Mapping[str, Finding]) -> str:
    """Of faults that follow from nothing known, the last one that began before this."""
    causes = [
        (other.group.first.line, id_)
        for id_, other in findings.items()
        if other.entry.is_fault and not other.entry.symptom and not other.because_of and _before(other, finding)
    ]
    return max(causes)[1] if causes else ""


def _before(cause: Finding, consequence: Finding) -> bool:
    return cause.group.first.line <= consequence.group.first.line + _DISORDER_LINES


def _root(id_: str, findings: Mapping[str, Finding]) -> str:
    """The finding at the beginning of a chain; entries do not explain each other in a circle (tests hold that)."""
    while because_of := findings[id_].because_of:
        id_ = because_of
    return id_
