"""Which installed versions go together, by the table. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from kveik.doctor.check import Outcome, Point
from kveik.doctor.version_table import Fault, Release, VersionTable, holds, parsed

Installed = Mapping[str, str]


def judge(installed: Installed, table: VersionTable) -> list[Point]:
    """What the table says of each pair of installed products, and of all of them together; the worst first.

    ``installed``: versions by the table's names of products.
    """
    points = [*_faults(installed, table), *_pairs(installed, table)]
    order = list(Outcome)
    return sorted(points, key=lambda point: order.index(point.outcome))


def _pairs(installed: Installed, table: VersionTable) -> Iterator[Point]:
    described = dict.fromkeys(release.product for release in table.release)
    for product in (name for name in described if name in installed):
        releases = [release for release in table.release if release.product == product]
        found = [release for release in releases if holds(release.version, installed[product])]
        if not found:
            yield _not_in_table(product, installed, table, releases)
        for release in found:
            yield from _release_points(release, installed, table)


def _release_points(release: Release, installed: Installed, table: VersionTable) -> Iterator[Point]:
    for other, wanted in release.needs.items():
        if other in installed:
            yield _need(release, other, wanted, installed, table)
    for other, wanted in release.made_with.items():
        if other in installed:
            yield _habit(release, other, wanted, installed, table)


def _need(release: Release, other: str, wanted: Sequence[str], installed: Installed, table: VersionTable) -> Point:
    about = _pair(release.product, other, installed, table)
    met = _one_holds(wanted, installed[other])
    if met is None:
        return _unreadable(about, installed[other])
    if met:
        return Point(Outcome.WELL, about, "they go together", source=release.source)
    effects = [row.effect for row in table.mismatch if (row.product, row.other) == (release.product, other)]
    told = f"{_short(release.product, installed, table)} goes with {table.title(other)} {_either(wanted)}"
    effect = f": {effects[0]}" if effects else ""
    remedy = f"take {table.title(other)} {_either(wanted)}, or another {table.title(release.product)}"
    return Point(Outcome.WRONG, about, f"{told}{effect}", remedy, release.source)


def _habit(release: Release, other: str, wanted: Sequence[str], installed: Installed, table: VersionTable) -> Point:
    about = _pair(release.product, other, installed, table)
    if _one_holds(wanted, installed[other]):
        return Point(Outcome.WELL, about, "they were made and tried together", source=release.source)
    told = f"it was made and tried with {table.title(other)} {_either(wanted)}; of others nothing is known"
    return Point(Outcome.UNKNOWN, about, told, source=release.source)


def _not_in_table(product: str, installed: Installed, table: VersionTable, releases: Sequence[Release]) -> Point:
    about = _short(product, installed, table)
    known = ", ".join(release.version.removeprefix("==") for release in releases)
    return Point(Outcome.UNKNOWN, about, f"this version is not in the table, which has {known}")


def _faults(installed: Installed, table: VersionTable) -> Iterator[Point]:
    for fault in table.fault:
        if all(name in installed and holds(specifier, installed[name]) for name, specifier in fault.when.items()):
            yield _fault_point(fault, installed, table)


def _fault_point(fault: Fault, installed: Installed, table: VersionTable) -> Point:
    about = " with ".join(_short(name, installed, table) for name in fault.when)
    if fault.only:
        return Point(Outcome.BEWARE, about, f"{fault.only}: {fault.effect}", fault.fix, fault.source)
    return Point(Outcome.WRONG, about, fault.effect, fault.fix, fault.source)


def _one_holds(wanted: Sequence[str], version: str) -> bool | None:
    """Whether one of the specifiers holds; None if the version cannot be read."""
    return None if parsed(version) is None else any(holds(specifier, version) for specifier in wanted)


def _unreadable(about: str, version: str) -> Point:
    return Point(Outcome.UNKNOWN, about, f"the version {version!r} cannot be read")


def _pair(product: str, other: str, installed: Installed, table: VersionTable) -> str:
    return f"{_short(product, installed, table)} with {_short(other, installed, table)}"


def _short(product: str, installed: Installed, table: VersionTable) -> str:
    return f"{table.title(product)} {installed[product]}"


def _either(wanted: Sequence[str]) -> str:
    return " or ".join(specifier.removeprefix("==") for specifier in wanted)
