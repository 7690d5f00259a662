"""The check ``pairs``: whether every node finds in each shared tier what every other node put there."""

from collections.abc import Iterable, Mapping

from kveik.config import FleetSettings, load
from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import Fleet, SeenAgent, together
from kveik.doctor.store_hold import hold, judge_held
from kveik.doctor.store_pairs import NodeCalls, Seen, calls_of_state, judge_pairs, presence_of
from kveik.doctor.store_trial import stores_of
from kveik.errors import DoctorError
from kveik.fleet.status import NodeStatus
from kveik.store.roll_call import Roster

_NO_AGENT = Point(
    Outcome.UNKNOWN,
    "roll call",
    "no agent was found that holds one: the fleet does not run, or is not reached from here",
    "kveik up; before a start, kveik doctor mount and stores tell what can be told",
)
_OFF = Point(Outcome.UNKNOWN, "roll call", "it is off: agent.probe_period_s is 0", "give it a period, such as 15")
_NONE_SHARED = Point(Outcome.WELL, "roll call", "this node's agent has no tier that others could share")


def check_pairs(context: Context) -> Verdict:
    """Ask this node's agent and the routers. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    fleet = fleet_of(context)
    view = fleet.view()
    if context.hold_s > 0 and _own_calls(view.agent) is None:
        held = hold(stores_of(fleet.described.agent, fleet.described.stores), _roster(context, fleet), context.hold_s)
        return Verdict(
            [f"a roll call of the doctor's own, as node {held.calls.node}"], list(judge_held(held, context.hold_s))
        )
    reported = [call for nodes in together(fleet.nodes_at, fleet.described.routers) for call in calls_of_nodes(nodes)]
    calls = joined(_own_calls(view.agent), reported)
    if not calls:
        return Verdict((), [_why_none(view.agent)])
    nodes = list(dict.fromkeys(node for call in calls for tier in call.tiers.values() for node in tier))
    evidence = [f"what the agent of {call.node} saw in {', '.join(call.tiers)}" for call in calls if call.tiers]
    return Verdict(evidence, list(judge_pairs(calls, nodes)))


def _roster(context: Context, fleet: Fleet) -> Roster:
    """Who is called by the doctor itself. Raises :class:`DoctorError` where that is not described."""
    described = fleet.described
    if described.config is None or not described.node:
        raise DoctorError(
            "a roll call before the start needs the nodes' names: --config FILE, and --node NAME of several"
        )
    name = load(FleetSettings, file=described.config, environ=context.environ).name
    nodes = dict.fromkeys(one.node for one in described.engines if one.node and one.shared_cache is not False)
    return Roster(name, described.node, tuple(dict.fromkeys([*nodes, described.node])))


def _why_none(agent: SeenAgent | None) -> Point:
    if agent is None or agent.state is None:
        return _NO_AGENT
    return _OFF if any(tier.get("shared") for tier in agent.state.get("tiers", ())) else _NONE_SHARED


def _own_calls(agent: SeenAgent | None) -> NodeCalls | None:
    return calls_of_state(agent.state) if agent is not None and agent.state is not None else None


def calls_of_nodes(nodes: Iterable[NodeStatus]) -> list[NodeCalls]:
    """What the nodes' watchdogs reported to a router of their agents' roll calls."""
    return [call for node in nodes if (call := _reported(node)) is not None]


def _reported(node: NodeStatus) -> NodeCalls | None:
    if node.silent:
        return NodeCalls(node.node, trouble=f"its last report is {node.age_s:.0f} s old")
    tiers: dict[str, Mapping[str, Seen]] = {
        tier.name: {sight.node: Seen(presence_of(sight.presence), sight.told) for sight in tier.sights}
        for tier in node.tiers
        if tier.sights
    }
    return NodeCalls(node.node, tiers) if tiers else None


def joined(own: NodeCalls | None, reported: Iterable[NodeCalls]) -> list[NodeCalls]:
    """One for each node: this node's agent speaks for itself, of several reports the first counts."""
    calls = {own.node: own} if own is not None else {}
    for call in reported:
        calls.setdefault(call.node, call)
    return list(calls.values())
