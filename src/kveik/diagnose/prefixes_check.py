"""The check ``prefixes``: whether clients write prompts whose beginnings can be shared, as the routers saw it."""

from collections.abc import Iterator

from kveik.diagnose.prefixes import joined, read_document, summary, where, worth_telling
from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.errors import ConfigError, FleetError
from kveik.router.break_tally import PrefixesDocument

#: Fewer requests say nothing; and a place that costs a smaller share of all prompt tokens is not worth a warning.
REQUESTS_MIN, SHARE_MIN = 20, 0.05


def check_prefixes(context: Context) -> Verdict:
    """Ask all routers. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    fleet = fleet_of(context)
    documents: list[PrefixesDocument] = []
    points: list[Point] = []
    for url in fleet.described.routers:
        try:
            documents.append(read_document(fleet.router(url).prefixes(), url))
        except (FleetError, ConfigError) as error:
            points.append(Point(Outcome.UNKNOWN, url, str(error)))
    if not documents:
        return Verdict([], points or [Point(Outcome.WELL, "prompts", "no router is there that could see any")])
    document = joined(documents)
    return Verdict([summary(document)], [*points, *judge_prefixes(document)])


def judge_prefixes(document: PrefixesDocument) -> Iterator[Point]:
    """A warning for each place that costs much."""
    if document.looked_at < REQUESTS_MIN:
        yield Point(Outcome.WELL, "prompts", "too few were looked at to say anything")
        return
    costly = [place for place in worth_telling(document) if place.share >= SHARE_MIN]
    for place in costly:
        told = f"{place.meaning} ({where(place)}): {place.share:.0%} of all prompt tokens stand behind it"
        yield Point(Outcome.BEWARE, place.model, told, f"{place.remedy} More: `kveik explain prefixes`")
    if not costly:
        yield Point(Outcome.WELL, "prompts", "nothing that changes in them costs much")
