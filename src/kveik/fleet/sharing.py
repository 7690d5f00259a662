"""Which nodes only seem to share a tier, by what their agents' roll calls saw of each other. Pure.

Words for how one node stands in the eyes of another are those of :class:`kveik.store.roll_call_verdict.Presence`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kveik.fleet.status import NodeStatus

HERE, TWIN, OTHER_BYTES = "here", "twin", "other bytes"
#: What a node says of another one whose block it looks for and does not find.
MISSED = frozenset({"never", "old"})


@dataclass(frozen=True, slots=True)
class Split:
    """One thing that is wrong with sharing, as a sentence."""

    tier: str
    told: str


def splits(nodes: Iterable[NodeStatus]) -> Iterator[Split]:
    """What is wrong with each tier, between nodes that report now.

    A node that is not seen tells little by itself: its agent may not run. One that sees itself in that tier does.
    """
    seen = {
        (node.node, tier.name): {sight.node: sight.presence for sight in tier.sights}
        for node in nodes
        if not node.silent
        for tier in node.tiers
        if tier.sights
    }
    for (node, tier), sights in seen.items():
        yield from (Split(tier, told) for told in _of_node(node, tier, sights, seen))


def _of_node(
    node: str, tier: str, sights: Mapping[str, str], seen: Mapping[tuple[str, str], Mapping[str, str]]
) -> Iterator[str]:
    for other, presence in sights.items():
        if presence == TWIN and other == node:
            yield f"two agents call themselves node {node}, as tier {tier} shows"
        elif presence == OTHER_BYTES:
            yield f"node {node} reads other bytes in tier {tier} than node {other} wrote"
        elif presence in MISSED and sights.get(node) == HERE == seen.get((other, tier), {}).get(other):
            yield f"node {node} does not find in tier {tier} what node {other} puts there: it is not shared"
