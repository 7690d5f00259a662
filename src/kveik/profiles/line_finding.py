"""One thing to say about a line, and what rules about lines share. Pure."""

import re
from dataclasses import dataclass

#: Options by what the parser calls them: each time it was given, its spelling and values.
Given = dict[str, list[tuple[str, list[str]]]]


@dataclass(frozen=True, slots=True)
class Finding:
    """``severity``: ``error`` if the line does not do what it says, ``note`` if it should be known."""

    severity: str
    name: str
    told: str
    instead: str
    source: str


def version_key(version: str) -> tuple[int, ...]:
    """To compare versions like ``0.27.1rc1``; a candidate comes before its release."""
    release, _, candidate = version.removeprefix("v").partition("rc")
    numbers = [int(number) for number in re.findall(r"\d+", release)][:3]
    return (*numbers, *(0 for _ in range(3 - len(numbers))), int(candidate) if candidate.isdigit() else 1 << 30)


def value(given: Given, name: str) -> str:
    """The value that holds: the last one; empty if it was not given."""
    times = given.get(name)
    return times[-1][1][0] if times and times[-1][1] else ""


def whole(given: Given, name: str) -> int | None:
    """The value as a whole number, also one like ``4k``; None if it was not given or is none."""
    text = value(given, name)
    match = re.fullmatch(r"(\d+)([kKmM]?)", text)
    if match is None:
        return None
    units = {"": 1, "k": 1000, "m": 1_000_000, "K": 1024, "M": 1 << 20}
    return int(match[1]) * units[match[2]]
