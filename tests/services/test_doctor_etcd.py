"""The doctor's look at real etcds: one that is well, and two that two nodes took for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.doctor.check import Outcome
from kveik.doctor.fleet_clocks import check_clocks
from kveik.doctor.fleet_described import DescribedFleet, DescribedNode
from kveik.doctor.fleet_etcd import check_etcd, look_at_etcd
from tests.etcd import Etcd, running_etcd
from tests.unit.doctor.paper_fleet import context_of

NODES = (DescribedNode("n0", "10.0.0.1"), DescribedNode("n1", "10.0.0.2"))


@pytest.fixture(scope="module")
def etcds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Etcd, Etcd]]:
    first, second = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    with running_etcd(first) as one, running_etcd(second) as two:
        yield one, two


def test_one_etcd_is_well(etcds: tuple[Etcd, Etcd]) -> None:
    address = etcds[0].address
    verdict = check_etcd(context_of(described=DescribedFleet("paper", etcds={"router.registry": (address,)})))
    assert verdict.outcome is Outcome.WELL
    assert "1 member(s), with a leader" in verdict.points[0].told


def test_an_etcd_on_each_node_is_wrong_though_each_is_healthy(etcds: tuple[Etcd, Etcd]) -> None:
    used = {"router.registry": (etcds[0].address,), "router.registry of n1.toml": (etcds[1].address,)}
    verdict = check_etcd(context_of(described=DescribedFleet("paper", etcds=used, nodes=NODES)))
    (point,) = (point for point in verdict.points if point.about == "etcd")
    assert point.outcome is Outcome.WRONG
    assert "not one etcd but 2" in point.told
    assert look_at_etcd(etcds[0].address).cluster != look_at_etcd(etcds[1].address).cluster


def test_etcd_tells_the_time(etcds: tuple[Etcd, Etcd]) -> None:
    described = DescribedFleet("paper", etcds={"router.registry": (etcds[0].address,)})
    assert check_clocks(context_of(described=described)).outcome is Outcome.WELL


def test_an_etcd_that_was_killed_is_wrong(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        etcd.kill()
        described = DescribedFleet("paper", etcds={"router.registry": (etcd.address,)})
        assert check_etcd(context_of(described=described)).outcome is Outcome.WRONG
