"""A fleet as it is described: whose engines are whose, and which addresses only the machine itself reaches."""

import pytest

from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet, DescribedNode, host_of, is_loopback

NODES = (DescribedNode("n0", "10.0.0.1"), DescribedNode("n1", "10.0.0.2"))
ENGINES = (
    DescribedEngine("a", "http://10.0.0.1:8001", node="n0"),
    DescribedEngine("b", "http://10.0.0.2:8001", node="n1"),
    DescribedEngine("c", "http://[::1]:8002"),
)


def test_engines_of_this_node_are_its_own_and_those_of_whom_nobody_said() -> None:
    fleet = DescribedFleet("paper", ENGINES, nodes=NODES, node="n1")
    assert [engine.name for engine in fleet.here] == ["b", "c"]
    assert fleet.address == "10.0.0.2"


def test_where_nobody_said_which_node_this_is_all_may_be_here() -> None:
    fleet = DescribedFleet("paper", ENGINES, nodes=NODES)
    assert [engine.name for engine in fleet.here] == ["a", "b", "c"]
    assert fleet.address == ""


def test_an_engine_knows_host_and_port_of_its_address() -> None:
    assert [(engine.host, engine.port) for engine in ENGINES] == [("10.0.0.1", 8001), ("10.0.0.2", 8001), ("::1", 8002)]
    assert DescribedEngine("d", "http://host").port == 0


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost", True), ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("10.0.0.1", False), ("", False)],
)
def test_loopback_is_reached_by_the_machine_alone(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:50051", "10.0.0.1"),
        ("http://meta:8080/metadata", "meta"),
        ("[::1]:2379", "::1"),
        ("host", "host"),
        ("", ""),
    ],
)
def test_the_host_of_an_address_is_found_with_and_without_a_scheme(address: str, host: str) -> None:
    assert host_of(address) == host
