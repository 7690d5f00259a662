"""The check ``mount``: what the folder of the filesystem tier lies on, what it can, and whether it can be shared."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from kveik.doctor.check import Context, Outcome, Point, Verdict
from kveik.doctor.fleet_described import DescribedFleet
from kveik.doctor.mount_facts import Meant, MountFacts, machines
from kveik.doctor.mount_judge import judge_mount, judge_pair, speed_text
from kveik.doctor.mount_look import look_at, seen_through

_NOTHING = Point(
    Outcome.UNKNOWN, "folder", "no folder is named", "name it: --folder, or a configuration with agent.filesystem"
)
_NO_TIER = Point(Outcome.WELL, "filesystem tier", "there is none: agent.filesystem is empty")


def check_mount(context: Context) -> Verdict:
    """Look at the folders that were named, or at the tier's. Two or more have to be one."""
    described = context.fleet.described if context.fleet is not None else None
    folders, meant = folders_of(context.folders, described)
    if not folders:
        return Verdict((), [_NO_TIER if described is not None and described.config else _NOTHING])
    seen = [look_at(folder) for folder in folders]
    points = [point for facts in seen for point in judge_mount(facts, meant)]
    for one, two in pairwise(folders):
        there = seen_through(one, two)
        points.append(judge_pair(str(one), str(two), there, "" if there else seen_through(two, one)))
    return Verdict(list(_evidence(seen)), points)


def folders_of(named: Sequence[Path], described: DescribedFleet | None) -> tuple[list[Path], Meant]:
    """Which folders, and what they are meant for. Several that were named are to be one, so somebody shares them."""
    if described is None:
        return list(named), Meant(nodes=max(1, len(named)))
    settings = described.agent
    meant = Meant(
        settings.filesystem_bytes,
        settings.filesystem_reserve_bytes,
        nodes=machines(node.address for node in described.nodes),
    )
    return list(named) or ([Path(settings.filesystem)] if settings.filesystem else []), meant


def _evidence(seen: Sequence[MountFacts]) -> Iterator[str]:
    for facts in seen:
        yield f"{facts.folder} on {facts.mount}"
        if facts.speed.tried_bytes:
            yield speed_text(facts.speed)
