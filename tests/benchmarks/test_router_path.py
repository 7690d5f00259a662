from pathlib import Path

import pytest
import uvloop

from benchmarks import router_path
from benchmarks.result import BenchmarkError
from benchmarks.router_path import CLIENTS, LOADS, Load, Rig, Wire, bare_rig, kveik_rig, requests


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_bodies_have_their_size_and_ends_of_their_own(load: Load) -> None:
    sent = requests(load, 100)
    bodies = {request.partition(b"\r\n\r\n")[2] for request in sent}
    assert len(bodies) == 100
    assert all(load.body_bytes - 12 <= len(body) <= load.body_bytes for body in bodies)
    assert len({body[:100] for body in bodies}) == router_path.GROUPS


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_whole_router_answers_all_requests_of_the_rig(load: Load, tmp_path: Path) -> None:
    async def run() -> Rig:
        rig = kveik_rig(tmp_path)
        rig.run(requests(load, CLIENTS * 2), load)
        return rig

    rig = uvloop.run(run())
    assert rig.to_clients == CLIENTS * 2 * load.parts


def test_the_bare_proxy_passes_everything_on() -> None:
    for load in LOADS:
        rig = bare_rig()
        rig.run(requests(load, CLIENTS * 2), load)
        assert rig.to_clients == CLIENTS * 2 * len(load.answer)


def test_a_router_that_ends_a_connection_is_no_measure() -> None:
    with pytest.raises(BenchmarkError, match="ended a connection"):
        Wire(None).close()
