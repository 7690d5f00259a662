"""What the doctor is told of a fleet, from files and from addresses."""

from pathlib import Path

import pytest

from kveik.diagnose.described import Named, described_fleet
from kveik.errors import ConfigError

TEXT = """
[fleet]
name = "two"
node = "n0"
state_folder = "{folder}/s"

[engine]
model = "/models/m"
kv_cache_bytes = "1 GiB"
environment = "HCCL_IF_IP=10.0.0.1"

[agent]
arena_bytes = "2 GiB"

[router]
registry = "{registry}"

[mooncake]
master = "10.0.0.1:50051"

[[nodes]]
name = "n0"
address = "10.0.0.1"

[[nodes]]
name = "n1"
address = "10.0.0.2"

[[launch]]
name = "a"
node = "n0"
port = 8001
devices = "0,1"
data_parallel = 2

[[launch]]
name = "a-1"
node = "n1"
head = "a"

[[launch]]
name = "b"
node = "n1"
port = 8001
shared_cache = false
"""


def write(folder: Path, name: str = "kveik.toml", registry: str = "etcd://10.0.0.1:2379,10.0.0.2:2379") -> Path:
    file = folder / name
    file.write_text(TEXT.format(folder=folder, registry=registry))
    return file


def test_a_file_tells_all_engines_and_more_of_those_of_this_node(tmp_path: Path) -> None:
    fleet = described_fleet(Named([write(tmp_path)]), {})
    engines = {engine.name: engine for engine in fleet.engines}
    assert [engine.name for engine in fleet.here] == ["a"]
    assert engines["a"].url == "http://10.0.0.1:8001"
    assert (engines["a"].devices, engines["a"].kv_cache_bytes, engines["a"].shared_cache) == ("0,1", 1 << 30, True)
    assert engines["a"].environment["HCCL_IF_IP"] == "10.0.0.1"
    assert engines["a"].environment["PYTHONHASHSEED"] == "0"
    assert "kveik.connector.serve" in engines["a"].command
    assert engines["a-1"].headless
    assert (engines["b"].shared_cache, engines["b"].command) == (False, ())
    assert engines["b"].events == "tcp://10.0.0.2:10001"


def test_a_file_tells_nodes_routers_agent_and_stores(tmp_path: Path) -> None:
    fleet = described_fleet(Named([write(tmp_path)]), {})
    assert [(node.name, node.address) for node in fleet.nodes] == [("n0", "10.0.0.1"), ("n1", "10.0.0.2")]
    assert (fleet.node, fleet.address) == ("n0", "10.0.0.1")
    assert fleet.routers == ("http://10.0.0.1:8100", "http://10.0.0.2:8100")
    assert fleet.agent_socket.endswith("agent.sock")
    assert fleet.arena.endswith(".arena")
    assert fleet.agent.arena_bytes == 2 << 30
    assert fleet.stores.mooncake.master == "10.0.0.1:50051"
    assert fleet.etcds == {"router.registry": ("10.0.0.1:2379", "10.0.0.2:2379")}


def test_another_node_may_be_named(tmp_path: Path) -> None:
    fleet = described_fleet(Named([write(tmp_path)], node="n1"), {})
    assert [engine.name for engine in fleet.here] == ["a-1", "b"]


def test_files_of_other_nodes_add_the_etcd_that_they_use(tmp_path: Path) -> None:
    files = [write(tmp_path), write(tmp_path, "n1.toml", "etcd://[::1]:2379")]
    fleet = described_fleet(Named(files), {})
    assert fleet.etcds[f"router.registry of {files[1]}"] == ("[::1]:2379",)
    assert len(fleet.engines) == 3


def test_addresses_alone_will_do_and_may_be_added(tmp_path: Path) -> None:
    only = described_fleet(Named(engines=["http://x:1"], routers=["http://r:2"]), {})
    assert (only.engines[0].name, only.engines[0].host, only.engines[0].port) == ("x:1", "x", 1)
    assert (only.config, only.agent_socket, only.nodes) == (None, "", ())
    both = described_fleet(Named([write(tmp_path)], engines=["http://x:1"], routers=["http://r:2"]), {})
    assert both.engines[-1].name == "x:1"
    assert both.routers[-1] == "http://r:2"


def test_a_fleet_without_a_registry_has_no_etcd(tmp_path: Path) -> None:
    assert described_fleet(Named([write(tmp_path, registry="")]), {}).etcds == {}


def test_what_is_not_valid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="node is 'n7'"):
        described_fleet(Named([write(tmp_path)], node="n7"), {})
    with pytest.raises(ConfigError, match=r"router\.registry: the registry is 'zookeeper'"):
        described_fleet(Named([write(tmp_path, registry="zookeeper")]), {})
    with pytest.raises(ConfigError):
        described_fleet(Named(engines=["ftp://x"]), {})
