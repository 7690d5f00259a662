"""What the roll calls of several nodes say together: which nodes share which tier, and which only seem to. Pure.

A node that does not see another one tells little alone: the other's agent may not run. If that other sees its own
block in the same tier at that time, the two have different stores.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kveik.doctor.check import Outcome, Point
from kveik.store.roll_call_verdict import Presence

_REMEDIES: Mapping[str, str] = {
    "filesystem": "mount the same export at agent.filesystem on every node, and in every container: kveik doctor mount",
    "mooncake": "one mooncake.master for all nodes, and a mooncake.host that the others reach: kveik doctor stores",
    "yuanrong": "one etcd for the workers of all nodes, on addresses that the others reach: kveik doctor etcd",
    "redis": "the same redis.address and database on every node",
}
_SOURCE = "each agent puts a block and reads those of the others"


@dataclass(frozen=True, slots=True)
class Seen:
    """How one node sees another one in a tier: the word, and the sentence."""

    presence: Presence
    told: str = ""


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """What one node's agent saw, by tier and node. ``trouble``: why nothing is known of it."""

    node: str
    tiers: Mapping[str, Mapping[str, Seen]] = field(default_factory=dict)
    trouble: str = ""


def calls_of_state(state: Mapping[str, Any]) -> NodeCalls | None:
    """From an agent's state; None if it makes no roll calls."""
    calls = {tier["name"]: tier["roll_call"] for tier in state.get("tiers", ()) if tier.get("roll_call")}
    if not calls:
        return None
    tiers = {
        name: {entry["node"]: Seen(presence_of(entry["presence"]), str(entry["told"])) for entry in call["nodes"]}
        for name, call in calls.items()
    }
    return NodeCalls(str(next(iter(calls.values()))["node"]), tiers)


def presence_of(word: str) -> Presence:
    """The presence of that name; of another version, one that tells nothing."""
    try:
        return Presence(word)
    except ValueError:
        return Presence.NO_ANSWER


def judge_pairs(calls: Sequence[NodeCalls], nodes: Sequence[str]) -> Iterator[Point]:
    """What is to be said of each tier and pair. ``nodes``: all that are to have an agent."""
    known = {call.node: call for call in calls}
    for node in nodes:
        if node not in known or known[node].trouble:
            why = known[node].trouble if node in known else "no router knows what its agent sees"
            yield Point(Outcome.UNKNOWN, f"node {node}", why, "run this on that node, or name a router: --router")
    for tier in dict.fromkeys(name for call in calls for name in call.tiers):
        points = [point for call in calls if tier in call.tiers for point in _reader(tier, call, known)]
        yield from points or [Point(Outcome.WELL, f"{tier} tier", _all_see(tier, calls), source=_SOURCE)]


def _all_see(tier: str, calls: Sequence[NodeCalls]) -> str:
    nodes = [call.node for call in calls if tier in call.tiers]
    if len(nodes) == 1:
        return f"{nodes[0]} reads what it put there"
    return f"each of {', '.join(nodes)} reads what the others put there"


def _reader(tier: str, call: NodeCalls, known: Mapping[str, NodeCalls]) -> Iterator[Point]:
    """Everything that one node does not see as it should."""
    for node, seen in call.tiers[tier].items():
        if seen.presence is Presence.HERE:
            continue
        if node == call.node:
            yield _own(tier, node, seen)
        else:
            yield _other(tier, call, node, seen, known.get(node))


def _own(tier: str, node: str, seen: Seen) -> Point:
    about = f"{tier} tier of {node}"
    if seen.presence is Presence.TWIN:
        told = f"{seen.told}: two agents are taken for one"
        return Point(Outcome.WRONG, about, told, "give each node a name of its own: [[nodes]], --node", _SOURCE)
    if seen.presence is Presence.WAITING:
        return Point(Outcome.UNKNOWN, about, "its agent began a moment ago", "ask again in a minute")
    if seen.presence is Presence.NO_ANSWER:
        return Point(Outcome.UNKNOWN, about, seen.told, "kveik doctor stores")
    told = f"it does not read what it put there itself: {seen.told}"
    return Point(Outcome.WRONG, about, told, "kveik doctor stores", _SOURCE)


def _other(tier: str, call: NodeCalls, node: str, seen: Seen, other: NodeCalls | None) -> Point:
    about = f"{call.node} reads {node} in the {tier} tier"
    if seen.presence is Presence.OTHER_BYTES:
        told = f"{seen.told}: blocks that go from {node} to {call.node} are damaged"
        return Point(Outcome.WRONG, about, told, _REMEDIES.get(tier, ""), _SOURCE)
    if seen.presence is Presence.WAITING:
        return Point(Outcome.UNKNOWN, about, "its agent began a moment ago", "ask again in a minute")
    if seen.presence is Presence.NO_ANSWER:
        return Point(Outcome.UNKNOWN, about, seen.told, "kveik doctor stores")
    if other is not None and other.tiers and tier not in other.tiers:
        told = f"{node} has no {tier} tier, and what is there is of no use to it"
        return Point(Outcome.BEWARE, about, told, "give all nodes the same stores")
    if _sees_itself(other, tier):
        never = "never saw" if seen.presence is Presence.NEVER else "no longer sees"
        told = f"{call.node} {never} what {node} keeps there, and {node} reads it itself: these are two stores"
        return Point(Outcome.WRONG, about, told, _REMEDIES.get(tier, ""), _SOURCE)
    told = f"{seen.told}; what {node} itself sees is not known"
    return Point(Outcome.UNKNOWN, about, told, "run this on that node, too")


def _sees_itself(call: NodeCalls | None, tier: str) -> bool:
    seen = call.tiers.get(tier, {}).get(call.node) if call is not None else None
    return seen is not None and seen.presence is Presence.HERE
