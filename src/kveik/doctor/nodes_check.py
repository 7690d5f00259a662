"""The check ``nodes``: what the checks of a machine said on the other nodes, which only they can make there."""

from collections.abc import Iterator, Mapping

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import Fleet, together
from kveik.fleet.report import FaultReport
from kveik.fleet.status import NodeStatus

_OUTCOMES = {outcome.value: outcome for outcome in (Outcome.WRONG, Outcome.NOT_DONE, Outcome.BEWARE)}
_THERE = "run `kveik doctor --machine` there"


def check_nodes(context: Context) -> Verdict:
    """Ask the routers what the nodes reported. Raises :class:`DoctorError` where no fleet was named."""
    fleet = fleet_of(context)
    reported: dict[str, NodeStatus] = {}
    for nodes in together(fleet.nodes_at, fleet.described.routers):
        for node in nodes:
            if node.node not in reported or reported[node.node].age_s > node.age_s:
                reported[node.node] = node
    described = [node.name for node in fleet.described.nodes]
    others = {name: reported.get(name) for name in dict.fromkeys([*described, *reported])}
    others.pop(fleet.described.node, None)
    asked = f"reports of {', '.join(name for name, node in others.items() if node) or 'no other node'}"
    return Verdict([asked], list(judge_nodes(others)) or [_alone(fleet)])


def judge_nodes(nodes: Mapping[str, NodeStatus | None]) -> Iterator[Point]:
    """Of each node that this machine is not; None: no router has heard of it."""
    for name, node in nodes.items():
        about = f"machine of node {name}"
        if node is None:
            told = "no watchdog of it reports to a router: the node does not run, or the router is not reached"
            yield Point(Outcome.UNKNOWN, about, told, _THERE)
        elif node.silent:
            yield Point(Outcome.UNKNOWN, about, f"its last report is {node.age_s:.0f} s old", _THERE)
        elif node.own_checks is None:
            told = "its watchdog has not looked yet: it does when all engines have started, unless that is off"
            yield Point(Outcome.UNKNOWN, about, told, f"{_THERE}; watchdog.checks_period_s")
        elif node.own_checks.trouble:
            told = f"its watchdog could not look: {node.own_checks.trouble}"
            yield Point(Outcome.NOT_DONE, about, told, _THERE)
        elif not node.own_checks.faults:
            yield Point(Outcome.WELL, about, f"{node.own_checks.checks} checks")
        else:
            yield from (_fault(name, fault) for fault in node.own_checks.faults)


def _fault(node: str, fault: FaultReport) -> Point:
    outcome = _OUTCOMES.get(fault.outcome, Outcome.UNKNOWN)
    return Point(outcome, f"{fault.about} on node {node} ({fault.check})", fault.told, fault.remedy)


def _alone(fleet: Fleet) -> Point:
    if fleet.described.config is None and not fleet.described.routers:
        return Point(Outcome.UNKNOWN, "nodes", "neither a configuration nor a router was named", "--router URL")
    return Point(Outcome.WELL, "nodes", "there is no other node")
