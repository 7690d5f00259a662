"""Addresses that others cannot reach, or that are not this machine's."""

from pathlib import Path

import pytest

from kveik.config import MooncakeSettings, RedisSettings, StoreSettings, WatchdogSettings
from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_addresses import check_addresses, judge_own, judge_reach
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet, DescribedNode
from kveik.doctor.network_cards import Card
from tests.unit.doctor.paper_fleet import context_of

CARDS = {
    "lo": Card("lo", ("127.0.0.1",)),
    "bond0": Card("bond0", ("10.0.0.1",)),
    "enp61s0f2": Card("enp61s0f2", ("192.168.0.9",), up=False),
}


def fleet(*addresses: str, **given: object) -> DescribedFleet:
    nodes = tuple(DescribedNode(f"n{number}", address) for number, address in enumerate(addresses))
    return DescribedFleet("kveik.toml", nodes=nodes, node="n0", config=Path("kveik.toml"), **given)  # type: ignore[arg-type]


def outcomes(points: object) -> dict[str, Outcome]:
    listed: list[Point] = list(points)  # type: ignore[call-overload]
    return {point.about: point.outcome for point in listed}


def engine(**environment: str) -> DescribedEngine:
    return DescribedEngine("a", "http://10.0.0.1:8001", node="n0", environment=environment)


def test_one_node_may_use_loopback() -> None:
    stores = StoreSettings(mooncake=MooncakeSettings(master="127.0.0.1:50051"))
    assert list(judge_reach(fleet("127.0.0.1", stores=stores))) == []


def test_several_nodes_with_addresses_of_their_own_are_well() -> None:
    assert outcomes(judge_reach(fleet("10.0.0.1", "10.0.0.2"))) == {
        "address of node n0": Outcome.WELL,
        "address of node n1": Outcome.WELL,
    }


def test_loopback_and_one_address_twice_are_wrong() -> None:
    assert outcomes(judge_reach(fleet("127.0.0.1", "10.0.0.2")))["address of node n0"] is Outcome.WRONG
    assert outcomes(judge_reach(fleet("10.0.0.2", "10.0.0.2")))["address of node n1"] is Outcome.WRONG


def test_a_store_on_each_nodes_loopback_is_an_isolated_pool() -> None:
    stores = StoreSettings(
        mooncake=MooncakeSettings(master="127.0.0.1:50051", metadata="http://localhost:8080/metadata", host="10.0.0.1"),
        redis=RedisSettings(address="/run/redis.sock"),
    )
    watchdog = WatchdogSettings(routers="http://127.0.0.1:8000, http://10.0.0.1:8000")
    points = list(judge_reach(fleet("10.0.0.1", "10.0.0.2", stores=stores, watchdog=watchdog)))
    wrong = [point.about for point in points if point.outcome is Outcome.WRONG]
    assert wrong == ["mooncake.master", "mooncake.metadata", "redis.address", "watchdog.routers"]
    assert "each node's own" in next(point.told for point in points if point.about == "mooncake.master")


def test_the_address_of_this_node_must_be_this_machines() -> None:
    right = judge_own(fleet("10.0.0.1", "10.0.0.2"), CARDS, {})
    wrong = judge_own(fleet("10.0.0.7", "10.0.0.2"), CARDS, {})
    assert outcomes(right) == {"address of node n0": Outcome.WELL}
    assert outcomes(wrong) == {"address of node n0": Outcome.WRONG}


@pytest.mark.parametrize(
    ("name", "value", "outcome"),
    [
        ("HCCL_IF_IP", "10.0.0.1", Outcome.WELL),
        ("HCCL_IF_IP", "10.0.0.2", Outcome.WRONG),
        ("VLLM_HOST_IP", "0.0.0.0", Outcome.WELL),
        ("GLOO_SOCKET_IFNAME", "bond0", Outcome.WELL),
        ("GLOO_SOCKET_IFNAME", "bond", Outcome.WRONG),
        ("NCCL_SOCKET_IFNAME", "bond", Outcome.WELL),
        ("HCCL_SOCKET_IFNAME", "enp61s0f2", Outcome.WRONG),  # it is down
        ("TP_SOCKET_IFNAME", "eth0", Outcome.WRONG),
    ],
)
def test_variables_of_engines_name_this_machines_cards_and_addresses(name: str, value: str, outcome: Outcome) -> None:
    described = fleet("10.0.0.1", engines=(engine(**{name: value}),))
    assert outcomes(judge_own(described, CARDS, {})) == {f"{name} of a": outcome}


def test_the_named_card_must_own_the_named_address() -> None:
    described = fleet("10.0.0.1", engines=(engine(HCCL_IF_IP="10.0.0.1", GLOO_SOCKET_IFNAME="lo"),))
    points = {point.about: point for point in judge_own(described, CARDS, {})}
    assert points["GLOO_SOCKET_IFNAME of a"].outcome is Outcome.WRONG
    assert "lo does not have 10.0.0.1" in points["GLOO_SOCKET_IFNAME of a"].told


def test_what_an_engine_inherits_counts_too() -> None:
    described = fleet("10.0.0.1", engines=(engine(),))
    assert outcomes(judge_own(described, CARDS, {"HCCL_IF_IP": "1.2.3.4"})) == {"HCCL_IF_IP of a": Outcome.WRONG}


def test_the_check_needs_a_configuration_and_is_well_on_one_node() -> None:
    assert check_addresses(context_of()).outcome is Outcome.UNKNOWN
    verdict = check_addresses(context_of(described=fleet("127.0.0.1")))
    assert verdict.outcome is Outcome.WELL
    assert verdict.evidence[0] == "kveik.toml"
