"""The check ``stores`` on real servers: well, at the address of somebody else, and after they were killed."""

import socket
from dataclasses import replace

import pytest

from kveik.config import StoreSettings
from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_described import DescribedFleet
from kveik.doctor.store_check import check_stores
from tests.tier_servers import running_tier_server
from tests.unit.doctor.paper_fleet import context_of

#: The setting that says where each store is.
ADDRESS = {"mooncake": "master", "yuanrong": "worker", "redis": "address"}


def told(kind: str, stores: StoreSettings) -> Point:
    verdict = check_stores(context_of(described=DescribedFleet("the test", stores=stores)))
    (point,) = (point for point in verdict.points if point.about == f"the {kind} store")
    return point


def elsewhere(kind: str, stores: StoreSettings, address: str) -> StoreSettings:
    return replace(stores, **{kind: replace(getattr(stores, kind), **{ADDRESS[kind]: address})})


@pytest.mark.parametrize("kind", sorted(ADDRESS))
def test_a_store_is_well_until_it_is_looked_for_elsewhere_or_killed(kind: str) -> None:
    with running_tier_server(kind) as server:
        point = told(kind, server.stores)
        assert (point.outcome, "put, read back, compared" in point.told) == (Outcome.WELL, True), point

        with socket.create_server(("127.0.0.1", 0)) as stranger:
            address = f"127.0.0.1:{stranger.getsockname()[1]}"
            point = told(kind, elsewhere(kind, server.stores, address))
        assert (point.outcome, "could not be joined" in point.told) == (Outcome.WRONG, True), point

        server.kill()
        point = told(kind, server.stores)
        assert point.outcome is Outcome.WRONG, point
        assert any(words in point.told for words in ("nobody answers", "could not be joined")), point
        assert point.remedy
