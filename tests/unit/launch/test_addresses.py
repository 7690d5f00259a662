"""Who listens where, and how others get there."""

from pathlib import Path

import pytest

from kveik.config import RouterSettings, WatchdogSettings
from kveik.fleet.announcement import check_announcement
from kveik.launch.addresses import (
    announcements,
    engine_url,
    kv_event_endpoints,
    listening_host,
    router_host,
    router_url,
    router_urls,
    runs_router,
)
from kveik.launch.fleet_spec import FleetSpec, read_fleet

TWO_NODES = """
[[nodes]]
name = "n0"
address = "10.0.0.1"
[[nodes]]
name = "n1"
address = "10.0.0.2"
[[launch]]
name = "a"
node = "n0"
[[launch]]
name = "b"
node = "n1"
"""


def read(folder: Path, text: str = "", engine: str = "") -> FleetSpec:
    file = folder / "kveik.toml"
    file.write_text(f'[fleet]\nstate_folder = "/s"\n[engine]\nmodel = "/m"\n{engine}\n{text}')
    return read_fleet(file, {})


def test_on_one_machine_everything_stays_on_it(tmp_path: Path) -> None:
    spec = read(tmp_path)
    (engine,) = spec.engines
    assert listening_host(engine, spec) == "127.0.0.1"
    assert engine_url(engine, spec) == "http://127.0.0.1:8001"
    assert kv_event_endpoints(engine, spec) == ("ipc:///s/local/engine-1.events", "ipc:///s/local/engine-1.replay")
    assert router_url(spec, "local", RouterSettings()) == "http://127.0.0.1:8100"


def test_on_several_nodes_engines_and_routers_listen_where_the_others_reach_them(tmp_path: Path) -> None:
    spec = read(tmp_path, TWO_NODES)
    _, second = spec.engines
    assert listening_host(second, spec) == "10.0.0.2"
    assert engine_url(second, spec) == "http://10.0.0.2:8002"
    assert kv_event_endpoints(second, spec) == ("tcp://10.0.0.2:10002", "tcp://10.0.0.2:11002")
    assert router_host(spec, "n1", RouterSettings()) == "10.0.0.2"
    assert router_host(spec, "n1", RouterSettings(host="0.0.0.0")) == "0.0.0.0"


def test_who_listens_everywhere_is_reached_by_its_nodes_address(tmp_path: Path) -> None:
    spec = read(tmp_path, TWO_NODES, 'host = "0.0.0.0"')
    first, _ = spec.engines
    assert listening_host(first, spec) == "0.0.0.0"
    assert engine_url(first, spec) == "http://10.0.0.1:8001"
    assert kv_event_endpoints(first, spec)[0] == "tcp://10.0.0.1:10001"
    assert router_url(spec, "n0", RouterSettings(host="0.0.0.0")) == "http://10.0.0.1:8100"


def test_an_address_of_version_six_stands_in_brackets(tmp_path: Path) -> None:
    spec = read(tmp_path, TWO_NODES.replace("10.0.0.1", "fd00::1"))
    assert engine_url(spec.engines[0], spec) == "http://[fd00::1]:8001"


@pytest.mark.parametrize("engine", ["kv_events = false"])
def test_an_engine_that_publishes_nothing_has_no_endpoints(tmp_path: Path, engine: str) -> None:
    spec = read(tmp_path, "", engine)
    assert kv_event_endpoints(spec.engines[0], spec) == ("", "")


def test_ranks_of_a_group_publish_nothing_that_a_router_follows(tmp_path: Path) -> None:
    head = '[[launch]]\nname = "a"\nnode = "n0"\ndata_parallel = 2\n[[launch]]\nname = "b"\nnode = "n1"\nhead = "a"\n'
    spec = read(tmp_path, TWO_NODES.partition("[[launch]]")[0] + head)
    assert {kv_event_endpoints(engine, spec) for engine in spec.engines} == {("", "")}
    assert [words.name for words in announcements(spec, "n0")] == ["a"]
    assert announcements(spec, "n1") == ()


def test_what_is_announced_is_a_valid_announcement_with_the_model_and_the_node(tmp_path: Path) -> None:
    (words,) = announcements(read(tmp_path), "local")
    assert check_announcement(words) == words
    assert (words.engine_id, words.labels) == ("engine-1", {"node": "local", "model_path": "/m"})


def test_routers_that_share_a_registry_run_on_every_node_and_others_on_the_first(tmp_path: Path) -> None:
    spec = read(tmp_path, TWO_NODES)
    shared = RouterSettings(registry="etcd://10.0.0.9:2379")
    assert [runs_router(spec, node, shared) for node in ("n0", "n1")] == [True, True]
    assert [runs_router(spec, node, RouterSettings()) for node in ("n0", "n1")] == [True, False]
    assert router_urls(spec, shared, WatchdogSettings()) == ("http://10.0.0.1:8100", "http://10.0.0.2:8100")
    assert router_urls(spec, RouterSettings(), WatchdogSettings()) == ("http://10.0.0.1:8100",)


def test_routers_that_are_set_are_taken(tmp_path: Path) -> None:
    watchdog = WatchdogSettings(routers="http://a:1, http://b:2,")
    assert router_urls(read(tmp_path), RouterSettings(), watchdog) == ("http://a:1", "http://b:2")
