"""What the configuration asks of memory, and what the machine gives."""

from dataclasses import replace
from pathlib import Path

import pytest

from kveik.config import AgentSettings, MooncakeSettings, StoreSettings
from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.fleet_memory import check_huge_pages, check_memory, judge_huge_pages, judge_memory
from kveik.doctor.machine_memory import MachineMemory
from tests.unit.doctor.paper_fleet import context_of

GIB = 1 << 30
MACHINE = MachineMemory(
    total_bytes=64 * GIB, shared_total_bytes=32 * GIB, shared_free_bytes=32 * GIB, huge_page_bytes=2 << 20
)


def fleet(arena_gib: int = 8, kv_gib: int = 4, devices: str = "", **given: object) -> DescribedFleet:
    engine = DescribedEngine("a", "http://127.0.0.1:1", kv_cache_bytes=kv_gib * GIB, devices=devices)
    usual: dict[str, object] = {
        "engines": (engine,), "agent_socket": "/run/agent.sock", "config": Path("kveik.toml"),
        "agent": AgentSettings(arena_bytes=arena_gib * GIB),
    }  # fmt: skip
    return DescribedFleet("kveik.toml", **{**usual, **given})  # type: ignore[arg-type]


def outcomes(described: DescribedFleet, **given: object) -> dict[str, Outcome]:
    memory = replace(MACHINE, **given)  # type: ignore[arg-type]
    return {point.about: point.outcome for point in judge_memory(described, memory)}


def test_what_fits_is_well() -> None:
    assert outcomes(fleet()) == {"arena": Outcome.WELL, "arena and KV caches": Outcome.WELL}


def test_an_arena_larger_than_shared_memory_is_wrong_also_in_a_container_with_dockers_64_mib() -> None:
    assert outcomes(fleet(), shared_total_bytes=64 << 20)["arena"] is Outcome.WRONG
    assert outcomes(fleet(), shared_free_bytes=1 * GIB)["arena"] is Outcome.WRONG


def test_an_arena_that_is_there_has_its_memory_already() -> None:
    assert outcomes(fleet(), shared_free_bytes=1 * GIB, arena_is_there=True)["arena"] is Outcome.WELL


def test_more_than_the_container_may_have_is_wrong() -> None:
    assert outcomes(fleet(), limit_bytes=10 * GIB)["arena and KV caches"] is Outcome.WRONG
    (_, point) = judge_memory(fleet(), replace(MACHINE, limit_bytes=10 * GIB))
    assert "the cgroup (container) allows 10.0 GiB" in point.told


def test_more_than_the_machine_has_is_wrong() -> None:
    assert outcomes(fleet(kv_gib=60))["arena and KV caches"] is Outcome.WRONG


def test_an_arena_that_sizes_itself_and_a_node_without_an_agent_are_well() -> None:
    assert outcomes(fleet(arena_gib=0, kv_gib=0)) == {"arena": Outcome.WELL}
    assert outcomes(fleet(kv_gib=0, agent_socket="")) == {}


@pytest.mark.parametrize(
    ("protocol", "locked", "outcome"),
    [("rdma", 8 << 20, Outcome.WRONG), ("rdma", -1, Outcome.WELL), ("tcp", 8 << 20, None)],
)
def test_a_transport_that_locks_memory_must_be_allowed_to(protocol: str, locked: int, outcome: Outcome | None) -> None:
    stores = StoreSettings(mooncake=MooncakeSettings(master="10.0.0.1:50051", protocol=protocol))
    assert outcomes(fleet(stores=stores), locked_bytes=locked).get("locked memory") is outcome


def test_ranks_on_devices_need_shared_memory_of_their_own() -> None:
    small = {"shared_total_bytes": 64 << 20, "shared_free_bytes": 64 << 20}
    assert outcomes(fleet(arena_gib=0, devices="0,1"), **small)["shared memory"] is Outcome.WRONG
    assert "shared memory" not in outcomes(fleet(arena_gib=0), **small)


def pages(stores: StoreSettings | None = None, huge_pages: int = 0, **environ: str) -> list[Point]:
    described = fleet(stores=stores or StoreSettings())
    return list(judge_huge_pages(described, replace(MACHINE, huge_pages=huge_pages), environ))


def test_nobody_asks_for_reserved_huge_pages() -> None:
    (point,) = pages(DS_H2D_MEMCPY_POLICY="direct", MC_STORE_USE_HUGEPAGE="0")
    assert point.outcome is Outcome.WELL


def test_huge_ffts_needs_reserved_pages() -> None:
    (point,) = pages(DS_H2D_MEMCPY_POLICY="huge_ffts")
    assert point.outcome is Outcome.WRONG
    assert "sysctl vm.nr_hugepages=N" in point.remedy
    (point,) = pages(DS_H2D_MEMCPY_POLICY="huge_ffts", huge_pages=512)
    assert point.outcome is Outcome.WELL


def test_mooncakes_segment_must_fit_into_the_reserved_pages() -> None:
    stores = StoreSettings(mooncake=MooncakeSettings(master="10.0.0.1:50051", segment_bytes=GIB))
    (point,) = pages(stores, huge_pages=100, MC_STORE_USE_HUGEPAGE="1")
    assert point.outcome is Outcome.WRONG
    assert "vm.nr_hugepages=512" in point.remedy
    (point,) = pages(stores, huge_pages=512, MC_STORE_USE_HUGEPAGE="1")
    assert point.outcome is Outcome.WELL


def test_the_checks_look_at_this_machine() -> None:
    huge = fleet(arena_gib=1 << 20)
    assert check_memory(context_of(described=huge)).outcome is Outcome.WRONG
    assert check_memory(context_of(described=fleet(arena_gib=0, kv_gib=0))).outcome is Outcome.WELL
    assert check_memory(context_of()).outcome is Outcome.UNKNOWN
    assert check_huge_pages(context_of(described=huge)).outcome is Outcome.WELL
