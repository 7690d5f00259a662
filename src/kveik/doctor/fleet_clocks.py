"""The check ``clocks``: whether the clocks of the fleet's machines agree with this one's."""

import time
from collections.abc import Iterator, Mapping

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import ANSWER_S, together
from kveik.doctor.server_time import ClockOffset, ask_time

#: Logs and events of several nodes are mixed up from the first on; what counts ages by wall time errs from the second.
BEWARE_S, WRONG_S = 3.0, 30.0
#: A server that has much to do tells an old time (uvicorn makes its Date once a second): it is asked again.
_TRIES, _PAUSE_S = 3, 1.0
_REMEDY = "let chrony or ntpd run on all nodes"


def check_clocks(context: Context) -> Verdict:
    """Compare the clocks of all servers that tell the time. Raises :class:`DoctorError` where no fleet was named."""
    fleet = fleet_of(context)
    engines = fleet.view().answering
    seen = [(engine.name, engine.described.url, engine.clock) for engine in engines]
    etcds = [f"http://{endpoint}" for endpoints in fleet.described.etcds.values() for endpoint in endpoints]
    seen += [(url, url, ask_time(url, ANSWER_S)) for url in dict.fromkeys([*fleet.described.routers, *etcds])]
    offsets = dict(together(_asked_again, seen))
    evidence = [f"the time that {name} tells" for name, offset in offsets.items() if offset]
    return Verdict(evidence, list(judge_clocks(offsets)))


def _asked_again(seen: tuple[str, str, ClockOffset | None]) -> tuple[str, ClockOffset | None]:
    """The least offset of some answers, for one that was far off at first: who tells an old time seems to be behind."""
    name, url, offset = seen
    for _ in range(_TRIES):
        if offset is None or offset.certain_s < BEWARE_S:
            break
        time.sleep(_PAUSE_S)
        again = ask_time(url, ANSWER_S)
        if again is None:
            break
        offset = min(offset, again, key=lambda one: one.certain_s)
    return name, offset


def judge_clocks(offsets: Mapping[str, ClockOffset | None]) -> Iterator[Point]:
    """What is to be said of each server's clock; those that tell none are left out unless it is all of them."""
    told = {name: offset for name, offset in offsets.items() if offset is not None}
    if not told:
        yield Point(Outcome.UNKNOWN, "clocks", "no server tells the time", "compare `date` on all nodes")
    for name, offset in told.items():
        off_s = offset.certain_s
        way = "ahead of" if offset.least_s > 0 else "behind"
        if off_s < BEWARE_S:
            yield Point(Outcome.WELL, name, "its clock agrees with ours, to a second or two", source="its Date header")
        else:
            text = f"its clock is {off_s:.0f} s or more {way} ours: times in logs, events and shared stores mislead"
            outcome = Outcome.WRONG if off_s >= WRONG_S else Outcome.BEWARE
            yield Point(outcome, name, text, _REMEDY, "its Date header")
