"""What each tier adds to a node: its services, their files, and what engines are told."""

import json
from typing import Any

import pytest
import yaml

from kveik.errors import ConfigError
from kveik.profiles.node import INSIDE
from kveik.profiles.tier_part import TierPart, tier_part, written_at
from kveik.profiles.wish import Given, wish
from tests.launches import combinations

TWO = ("10.0.0.1", "10.0.0.2")


def part(tier: str, node: int = 0, hardware: str = "a2", model: str = "glm-5", **given: Any) -> TierPart:
    values: dict[str, Any] = {"nodes": 2, "addresses": TWO} | given
    return tier_part(wish(hardware, model, tier, Given(**values)), node)


def transfer(found: TierPart, node: int = 0, number: int = 0) -> dict[str, Any]:
    options = {name: value for name, value, _ in found.options(node, number)}
    read: dict[str, Any] = json.loads(options["--kv-transfer-config"])
    return read


def command(found: TierPart, name: str) -> list[str]:
    return next(process.words for process in found.processes if process.name == name)


def test_no_tier_adds_nothing() -> None:
    found = part("none")
    assert (found.processes, dict(found.files), found.options(0, 0)) == ((), {}, ())


def test_the_directory_of_memcache_is_the_first_nodes() -> None:
    found = part("memcache", store_gib=640)
    assert found.files["mmc-meta.conf"].splitlines() == [
        "ock.mmc.meta_service_url = tcp://10.0.0.1:5000",
        "ock.mmc.meta_service.config_store_url = tcp://10.0.0.1:6000",
        "ock.mmc.meta_service.metrics_url = http://10.0.0.1:9002",
        "ock.mmc.log_level = info",
        "ock.mmc.evict_threshold_high = 90",
        "ock.mmc.evict_threshold_low = 80",
    ]
    assert "mmc-meta.conf" not in part("memcache", 1).files
    assert found.processes[0].variables[0].value == f"{INSIDE}/mmc-meta.conf"


@pytest.mark.parametrize(("hardware", "size"), [("a2", "80GB"), ("a3", "40GB")])
def test_memory_of_memcache_is_shared_out_to_devices(hardware: str, size: str) -> None:
    local = part("memcache", hardware=hardware, store_gib=640).files["mmc-local.conf"]
    assert f"ock.mmc.local_service.dram.size = {size}" in local


@pytest.mark.parametrize(
    ("hardware", "protocol"), [("a2", "device_rdma"), ("a3", "device_sdma"), ("a5", "device_uboe")]
)
def test_memcache_takes_the_protocol_of_the_hardware(hardware: str, protocol: str) -> None:
    assert f"protocol = {protocol}" in part("memcache", hardware=hardware).files["mmc-local.conf"]


def test_memcache_and_its_users_agree_on_one_address() -> None:
    meta, local = part("memcache").files["mmc-meta.conf"], part("memcache", 1).files["mmc-local.conf"]
    url = "ock.mmc.meta_service_url = tcp://10.0.0.1:5000"
    assert url in meta
    assert url in local


def test_mooncakes_master_is_started_once_with_room_for_slow_transfers() -> None:
    assert command(part("mooncake"), "mooncake-master") == [
        "mooncake_master",
        "--port=50088",
        "--eviction_high_watermark_ratio=0.9",
        "--eviction_ratio=0.1",
        "--default_kv_lease_ttl=11000",
        "--client_ttl=120",
    ]
    assert part("mooncake", 1).processes == ()


@pytest.mark.parametrize(
    ("hardware", "protocol", "segment"), [("a2", "ascend", "8GB"), ("a3", "ascend", "4GB"), ("cuda", "tcp", "8GB")]
)
def test_mooncakes_file_is_that_of_the_hardware(hardware: str, protocol: str, segment: str) -> None:
    for node in (0, 1):
        assert json.loads(part("mooncake", node, hardware).files["mooncake.json"]) == {
            "metadata_server": "P2PHANDSHAKE",
            "protocol": protocol,
            "device_name": "",
            "master_server_address": "10.0.0.1:50088",
            "global_segment_size": segment,
        }


def test_etcd_listens_no_wider_than_needed() -> None:
    assert command(part("yuanrong"), "etcd") == [
        "etcd",
        "--name",
        "kveik-launch",
        "--data-dir",
        "/var/lib/etcd",
        "--listen-client-urls",
        "http://10.0.0.1:2379",
        "--advertise-client-urls",
        "http://10.0.0.1:2379",
        "--listen-peer-urls",
        "http://10.0.0.1:2380",
        "--initial-advertise-peer-urls",
        "http://10.0.0.1:2380",
        "--initial-cluster",
        "kveik-launch=http://10.0.0.1:2380",
    ]


@pytest.mark.parametrize("node", [0, 1])
def test_a_worker_of_yuanrong_has_its_own_address_and_the_one_etcd(node: int) -> None:
    words = command(part("yuanrong", node, store_gib=500), "yuanrong-worker")
    assert words[4:6] == [TWO[node], "31501"]
    assert words[6:] == [
        "--etcd_address",
        "10.0.0.1:2379",
        "--shared_memory_size_mb",
        "512000",
        "--node_timeout_s",
        "30",
        "--node_dead_timeout_s",
        "60",
        "--log_dir",
        "/var/log/yuanrong/worker",
    ]


def test_engines_find_the_worker_of_their_node_by_a_file() -> None:
    found = part("yuanrong", 1)
    assert json.loads(found.files["yuanrong.json"])["worker_addr"] == "10.0.0.2:31501"
    assert [one.name for one in found.variables] == ["YR_CONFIG_PATH", "DATASYSTEM_CLIENT_LOG_DIR"]
    assert found.engine_files == ("yuanrong.json",)


def test_ucm_keeps_blocks_in_the_folder_that_was_given() -> None:

    found = part("ucm", shared_folder="/mnt/a b", store_gib=80)
    (connector,) = yaml.safe_load(found.files["ucm.yaml"])["ucm_connectors"]
    assert connector["ucm_connector_name"] == "UcmPipelineStore"
    assert connector["ucm_connector_config"] == {
        "store_pipeline": "Cache|Posix",
        "storage_backends": "/mnt/a b",
        "cache_buffer_capacity_gb": 80,
        "timeout_ms": 30000,
    }
    assert transfer(found)["kv_connector_extra_config"] == {"UCM_CONFIG_FILE": f"{INSIDE}/ucm.yaml"}
    assert dict(found.engine_mounts) == {"/mnt/a b": False}


@pytest.mark.parametrize("backend", ["memcache", "mooncake", "yuanrong"])
def test_ascend_store_is_told_its_backend_and_a_port_of_its_own(backend: str) -> None:
    ports = []
    for node in (0, 1):
        said = transfer(part(backend, node), node)
        assert said["kv_connector"] == "AscendStoreConnector"
        assert said["kv_connector_extra_config"]["backend"] == backend
        ports.append(said["kv_connector_extra_config"]["lookup_rpc_port"])
    assert ports == ["0", "1"]


def test_kveiks_connector_asks_for_what_was_lost_to_be_computed() -> None:
    said = transfer(part("kveik"))
    assert said["kv_connector"] == "KveikConnector"
    assert said["kv_load_failure_policy"] == "recompute"


def test_kveiks_agent_gets_the_memory_that_was_given() -> None:
    words = command(part("kveik", store_gib=2, shared_folder="/mnt/kv"), "agent")
    assert words == [
        "kveik",
        "agent",
        "--socket",
        "/run/kveik/agent.sock",
        "--arena-bytes",
        str(2 << 30),
        "--filesystem",
        "/mnt/kv",
    ]


def test_files_that_processes_read_are_files_that_are_written() -> None:
    for one in combinations():
        try:
            wanted = one.wish(1)
        except ConfigError:  # what cannot be launched is the matter of other tests
            continue
        found = tier_part(wanted, 0)
        read = {name for process in found.processes for name in process.files} | set(found.engine_files)
        assert read == set(found.files)


def test_a_written_file_is_found_where_processes_look() -> None:
    assert written_at("x.json") == "@HERE@/x.json:/etc/kveik-launch/x.json:ro"
