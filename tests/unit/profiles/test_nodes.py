"""What each node runs: ranks, their devices and addresses, and the tier's processes."""

import json
from typing import Any

from kveik.profiles.node import Node, Process
from kveik.profiles.nodes import nodes
from kveik.profiles.wish import Given, wish
from tests.launches import smallest

TWO = ("10.0.0.1", "10.0.0.2")


def launched(hardware: str, model: str, tier: str = "none", **given: Any) -> tuple[Node, ...]:
    if given.get("nodes", 1) == 2:
        given = {"addresses": TWO, **given}
    return nodes(wish(hardware, model, tier, Given(**given)))


def options(process: Process) -> dict[str, str]:
    return {name: value for name, value, _ in process.options}


def variables(process: Process) -> dict[str, str]:
    return {one.name: one.value for one in process.variables}


def engine(node: Node) -> Process:
    return next(process for process in node.processes if process.command[:2] == ("vllm", "serve"))


def connector(process: Process) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(options(process)["--kv-transfer-config"])
    return found


def test_a_group_over_two_nodes_has_one_server_and_ranks_in_order() -> None:
    first, second = (options(engine(node)) for node in launched("a2", "glm-5", nodes=2))
    assert first["--data-parallel-size"] == second["--data-parallel-size"] == "2"
    assert first["--data-parallel-address"] == second["--data-parallel-address"] == "10.0.0.1"
    assert "--headless" not in first
    assert "--data-parallel-start-rank" not in first
    assert second["--headless"] == ""
    assert second["--data-parallel-start-rank"] == "1"
    assert "--port" not in second


def test_ranks_of_a_node_with_two_begin_after_those_before_it() -> None:
    nodes_ = launched("a3", "deepseek-v4.1-flash", nodes=2)
    assert options(engine(nodes_[1]))["--data-parallel-start-rank"] == "2"
    assert options(engine(nodes_[1]))["--data-parallel-size"] == "4"


def test_engines_of_their_own_have_their_own_devices_ports_and_lookup_ports() -> None:
    (node,) = launched("a2", "qwen3-32b", "mooncake")
    engines = [process for process in node.processes if process.command[:2] == ("vllm", "serve")]
    assert [variables(one)["ASCEND_RT_VISIBLE_DEVICES"] for one in engines] == ["0,1,2,3", "4,5,6,7"]
    assert [options(one)["--port"] for one in engines] == ["8000", "8001"]
    assert [connector(one)["kv_connector_extra_config"]["lookup_rpc_port"] for one in engines] == ["0", "1"]


def test_all_engines_hash_alike_and_find_each_other_over_their_own_interface() -> None:
    for number, node in enumerate(launched("a2", "glm-5", nodes=2, interfaces=("bond0", "enp61s0f2"))):
        found = variables(engine(node))
        assert found["PYTHONHASHSEED"] == "0"
        assert found["HCCL_IF_IP"] == TWO[number]
        assert found["HCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == ("bond0", "enp61s0f2")[number]


def test_there_is_one_etcd_and_a_worker_on_each_node() -> None:
    first, second = launched("a2", "glm-5", "yuanrong", nodes=2)
    assert [process.name for process in first.processes] == ["etcd", "yuanrong-worker", "engine"]
    assert [process.name for process in second.processes] == ["yuanrong-worker", "engine"]
    for node in (first, second):
        worker = node.processes[-2]
        assert options(worker)["--etcd_address"] == "10.0.0.1:2379"
        assert int(options(worker)["--node_dead_timeout_s"]) > int(options(worker)["--node_timeout_s"])
        assert json.loads(node.files["yuanrong.json"])["worker_addr"] == f"{node.address}:31501"
    assert "DS_WORKER_ADDR" not in variables(engine(first))


def test_the_pool_of_memcache_is_one_for_all_nodes_and_never_on_loopback() -> None:
    first, second = launched("a2", "glm-5", "memcache", nodes=2)
    assert [process.name for process in second.processes] == ["engine"]
    for node in (first, second):
        assert "tcp://10.0.0.1:5000" in node.files["mmc-local.conf"]
        assert "127.0.0.1" not in node.files["mmc-local.conf"]
    assert "device_rdma" in first.files["mmc-local.conf"]
    assert "device_sdma" in launched("a3", "glm-5", "memcache")[0].files["mmc-local.conf"]


def test_mooncake_keeps_a_lease_longer_than_a_transfer_may_take() -> None:
    (node,) = launched("a3", "glm-5", "mooncake")
    words = node.processes[0].command
    assert "--default_kv_lease_ttl=11000" in words
    assert json.loads(node.files["mooncake.json"])["protocol"] == "ascend"
    assert connector(engine(node))["kv_connector"] == "AscendStoreConnector"


def test_mooncake_on_cuda_is_reached_by_vllms_own_connector() -> None:
    (node,) = launched("cuda", "qwen3-32b", "mooncake")
    assert connector(engine(node))["kv_connector"] == "MooncakeStoreConnector"
    assert json.loads(node.files["mooncake.json"])["protocol"] == "tcp"


def test_models_with_several_caches_keep_them_apart_and_fail_what_cannot_be_loaded() -> None:
    (node,) = launched("a3", "deepseek-v4.1-flash", "memcache")
    assert "--no-disable-hybrid-kv-cache-manager" in options(engine(node))
    assert "kv_load_failure_policy" not in connector(engine(node))
    (other,) = launched("a3", "glm-5", "memcache")
    assert "--no-disable-hybrid-kv-cache-manager" not in options(engine(other))
    assert connector(engine(other))["kv_load_failure_policy"] == "recompute"


def test_kveiks_agent_and_engines_share_memory_processes_and_socket() -> None:
    (node,) = launched("cuda", "qwen3-32b", "kveik", shared_folder="/mnt/kv")
    agent = node.processes[0]
    assert options(agent)["--filesystem"] == "/mnt/kv"
    assert {"--ipc=host", "--pid=host"} <= set(agent.docker) & set(engine(node).docker)
    assert connector(engine(node))["kv_connector_extra_config"]["socket"] == options(agent)["--socket"]
    assert "--shm-size" not in " ".join(engine(node).docker)


def test_engram_tables_of_one_a3_lie_in_host_memory_that_both_ranks_share() -> None:
    (node,) = launched("a3", "deepseek-v4.1-flash")
    assert json.loads(options(engine(node))["--engram-config"]) == {"cpu_offload": True, "dp_shared_memory": True}
    assert "--ipc=host" in engine(node).docker


def test_what_is_given_holds_instead_of_the_preset() -> None:
    (node,) = launched("a3", "glm-5", context=65536, requests=9000, port=1025, served="mine", model_folder="/m/x")
    found = options(engine(node))
    assert engine(node).command == ("vllm", "serve", "/m/x")
    assert found["--max-model-len"] == "65536"
    assert found["--max-num-batched-tokens"] == found["--max-num-seqs"] == "9000"
    assert (found["--port"], found["--served-model-name"]) == ("1025", "mine")


def test_a_cpu_needs_no_container() -> None:
    (node,) = launched("cpu", "smollm2-135m", "kveik")
    assert not node.in_containers
    assert node.device_files == ()
    assert "--tensor-parallel-size" not in options(engine(node))


def test_no_two_processes_of_a_node_listen_on_one_port() -> None:
    for one in smallest():
        for node in nodes(one):
            own = [process.ready.port for process in node.processes if process.ready.host == node.address]
            assert len(own) == len(set(own)), (one.hardware.name, one.model.name, one.tier.name)
            assert not set(own) & (set(one.tier.ports.values()) - {process.ready.port for process in node.processes})
