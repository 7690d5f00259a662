"""Which nodes only seem to share a tier, from their reports."""

from kveik.fleet.report import SightReport, TierReport
from kveik.fleet.sharing import splits
from kveik.fleet.status import NodeStatus


def node(name: str, *, silent: bool = False, tier: str = "filesystem", **sees: str) -> NodeStatus:
    sights = tuple(SightReport(node=other, presence=presence) for other, presence in sees.items())
    return NodeStatus(
        node=name, fleet="f", age_s=1.0, silent=silent, tiers=(TierReport(name=tier, state="on", sights=sights),)
    )


def told(*nodes: NodeStatus) -> list[str]:
    return [split.told for split in splits(nodes)]


def test_nodes_that_see_each_other_share() -> None:
    assert told(node("a", a="here", b="here"), node("b", a="here", b="here")) == []


def test_nodes_that_see_only_themselves_do_not_share_and_both_are_named() -> None:
    assert told(node("a", a="here", b="never"), node("b", a="old", b="here")) == [
        "node a does not find in tier filesystem what node b puts there: it is not shared",
        "node b does not find in tier filesystem what node a puts there: it is not shared",
    ]


def test_a_node_that_does_not_report_or_is_silent_or_sees_nothing_is_not_blamed_on_the_share() -> None:
    one = node("a", a="here", b="never")
    assert told(one) == []
    assert told(one, node("b", silent=True, a="here", b="here")) == []
    assert told(one, node("b", a="never", b="old")) == []
    assert told(node("a", a="never", b="never"), node("b", a="here", b="here")) == [], "a does not see even itself"
    assert told(one, node("b", tier="redis", a="here", b="here")) == []
    assert told(node("a", a="here", b="waiting"), node("b", a="here", b="here")) == []


def test_twins_and_damage_are_told() -> None:
    assert told(node("a", a="twin")) == ["two agents call themselves node a, as tier filesystem shows"]
    assert told(node("a", a="here", b="other bytes")) == [
        "node a reads other bytes in tier filesystem than node b wrote"
    ]


def test_a_tier_without_roll_calls_says_nothing() -> None:
    assert told(node("a"), node("b")) == []
