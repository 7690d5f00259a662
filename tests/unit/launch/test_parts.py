"""From a configuration file to the processes of a node."""

import json
import sys
from pathlib import Path

import pytest

from kveik.errors import ConfigError
from kveik.launch.fleet_spec import read_fleet
from kveik.launch.parts import Here, agent_socket, arena_path, describe_node, read_tables
from kveik.supervise.node_folder import NodeFolder
from kveik.supervise.part import KINDS, Part, Readiness

HERE = Here(device="cpu", cores=(0, 1, 2, 3), python="/venv/bin/python", environ={})
TWO_ENGINES = "[fleet]\nengines = 2\n"
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
data_parallel = 2
[[launch]]
name = "a-1"
node = "n1"
head = "a"
"""


def parts_of(folder: Path, text: str = "", here: Here = HERE, **given: object) -> dict[str, Part]:
    file = folder / "kveik.toml"
    fleet = '[fleet]\nstate_folder = "/s"\n' if "[fleet]" not in text else ""
    text = text.replace("[fleet]\n", '[fleet]\nstate_folder = "/s"\n')
    engine = '[engine]\nmodel = "/models/small"\n' if "[engine]" not in text else ""
    text = text.replace("[engine]\n", '[engine]\nmodel = "/models/small"\n')
    file.write_text(f"{fleet}{engine}{text}")
    spec = read_fleet(file, {}, given)
    return {part.name: part for part in describe_node(spec, read_tables(file, {}), here)}


def command(part: Part, variant: int = 0) -> list[str]:
    return list(part.variants[variant].command)


def value_after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_a_node_has_an_agent_engines_a_router_and_a_watchdog_in_this_order(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, TWO_ENGINES)
    assert list(parts) == ["agent", "engine-1", "engine-2", "router", "watchdog"]
    kinds = [KINDS.index(part.kind) for part in parts.values()]
    assert kinds == sorted(kinds)
    assert {str(part.log.parent) for part in parts.values()} == {"/s/local/logs"}


def test_own_commands_read_the_same_file_and_keep_their_things_in_the_nodes_folder(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    config = str(tmp_path / "kveik.toml")
    for name in ("agent", "router", "watchdog"):
        words = command(parts[name])
        assert words[:4] == ["/venv/bin/python", "-m", "kveik.cli.main", name]
        assert value_after(words, "--config") == config
    assert value_after(command(parts["agent"]), "--socket") == "/s/local/agent.sock"
    assert value_after(command(parts["agent"]), "--arena").startswith("/dev/shm/kveik-")
    assert value_after(command(parts["router"]), "--registry-file") == "/s/local/fleet.json"
    assert value_after(command(parts["watchdog"]), "--node") == "local"
    assert parts["router"].readiness == Readiness("http", "http://127.0.0.1:8100/health")
    assert parts["agent"].readiness == Readiness("socket", "/s/local/agent.sock")


def test_an_agent_is_told_who_else_of_the_fleet_has_one(tmp_path: Path) -> None:
    text = TWO_NODES + '[[launch]]\nname = "b"\nnode = "n0"\nshared_cache = false\n'
    words = command(parts_of(tmp_path, text, node="n1")["agent"])
    assert words[-3:] == ["--fleet=kveik", "--node=n1", "--nodes=n0,n1"]
    assert command(parts_of(tmp_path)["agent"])[-2:] == ["--node=local", "--nodes=local"]


def test_places_that_are_set_are_used(tmp_path: Path) -> None:
    text = '[agent]\nsocket = "/run/a.sock"\narena = "/dev/shm/mine"\n[router]\nregistry_file = "/r/fleet.json"\n'
    parts = parts_of(tmp_path, text)
    assert value_after(command(parts["agent"]), "--socket") == "/run/a.sock"
    assert value_after(command(parts["agent"]), "--arena") == "/dev/shm/mine"
    assert "--registry-file" not in command(parts["router"])
    transfer = json.loads(value_after(command(parts["engine-1"]), "--kv-transfer-config"))
    assert transfer["kv_connector_extra_config"] == {"socket": "/run/a.sock"}


def test_an_engine_is_served_with_connector_events_and_time_for_its_requests(tmp_path: Path) -> None:
    engine = parts_of(tmp_path, "[connector]\nbatch_bytes = 1048576\n")["engine-1"]
    words = command(engine)
    assert words[:4] == ["/venv/bin/python", "-m", "kveik.connector.serve", "/models/small"]
    transfer = json.loads(value_after(words, "--kv-transfer-config"))
    assert transfer["kv_connector_extra_config"] == {"batch_bytes": 1048576, "socket": "/s/local/agent.sock"}
    events = json.loads(value_after(words, "--kv-events-config"))
    assert events["endpoint"] == "ipc:///s/local/engine-1.events"
    assert value_after(words, "--shutdown-timeout") == "120"
    assert engine.stop_grace_s > 120
    assert engine.readiness == Readiness("inference", "http://127.0.0.1:8001", "small")
    assert engine.environment["PYTHONHASHSEED"] == "0"
    assert engine.start_s == 1800


def test_an_engine_has_simpler_modes_to_fall_back_to(tmp_path: Path) -> None:
    engine = parts_of(tmp_path)["engine-1"]
    assert [variant.mode for variant in engine.variants] == ["compiled", "eager"]
    assert "--enforce-eager" not in command(engine)
    assert "--enforce-eager" in command(engine, 1)
    (only,) = parts_of(tmp_path, '[engine]\nmode = "eager"\n')["engine-1"].variants
    assert only.mode == "eager"


def test_engines_on_one_machine_get_cores_of_their_own(tmp_path: Path) -> None:
    def cores(text: str, here: Here = HERE) -> list[str | None]:
        parts = parts_of(tmp_path, text, here)
        return [part.environment.get("VLLM_CPU_OMP_THREADS_BIND") for part in parts.values() if part.kind == "engine"]

    assert cores(TWO_ENGINES) == ["0-1", "2-3"]
    assert cores("[fleet]\nengines = 6\n") == ["0", "1", "2", "3", "0", "1"]
    assert cores("") == [None]
    assert cores(TWO_ENGINES, Here(device="cuda", cores=(0, 1), environ={})) == [None, None]
    assert cores('[[launch]]\nname = "a"\ncores = "3"\n[[launch]]\nname = "b"\n') == ["3", "2-3"]


@pytest.mark.parametrize(
    ("device", "variable"), [("cuda", "CUDA_VISIBLE_DEVICES"), ("ascend", "ASCEND_RT_VISIBLE_DEVICES")]
)
def test_engines_see_their_own_devices(tmp_path: Path, device: str, variable: str) -> None:
    parts = parts_of(tmp_path, '[[launch]]\nname = "a"\ndevices = "2,3"\n', Here(device=device, environ={}))
    assert parts["a"].environment[variable] == "2,3"


def test_development_routes_are_for_engines_on_loopback_and_can_be_left_out(tmp_path: Path) -> None:
    def served(engine: str) -> bool:
        return "VLLM_SERVER_DEV_MODE" in parts_of(tmp_path, f"[engine]\n{engine}\n")["engine-1"].environment

    assert served("")
    assert not served("proof_routes = false")
    assert not served('host = "0.0.0.0"')


def test_what_the_user_set_for_vllms_memory_stays_unless_it_would_contradict(tmp_path: Path) -> None:
    def taken_out(text: str, value: str) -> bool:
        here = Here(cores=(0,), environ={"VLLM_CPU_KVCACHE_SPACE": value})
        return "VLLM_CPU_KVCACHE_SPACE" in parts_of(tmp_path, text, here)["engine-1"].environment

    assert not taken_out("", "4")
    assert taken_out("", "")
    assert taken_out("[engine]\nkv_cache_bytes = 1000000\n", "4")


def test_further_arguments_and_environment_of_one_engine_reach_it_alone(tmp_path: Path) -> None:
    text = '[[launch]]\nname = "a"\narguments = "--max-num-seqs 4"\nenvironment = "X=1"\n[[launch]]\nname = "b"\n'
    parts = parts_of(tmp_path, text)
    assert command(parts["a"])[-2:] == ["--max-num-seqs", "4"]
    assert parts["a"].environment["X"] == "1"
    assert "--max-num-seqs" not in command(parts["b"])
    assert "X" not in parts["b"].environment


def test_without_a_shared_cache_there_is_no_agent(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, "[engine]\nshared_cache = false\n")
    assert "agent" not in parts
    assert "--kv-transfer-config" not in command(parts["engine-1"])


def test_simulated_engines_stand_where_real_ones_would(tmp_path: Path) -> None:
    text = '[engine]\nsimulated = true\narguments = "--decode-s 0.01"\n'
    engine = parts_of(tmp_path, text)["engine-1"]
    words = command(engine)
    assert words[:4] == ["/venv/bin/python", "-m", "kveik.cli.main", "sim-engine"]
    assert {"--port=8001", "--model=small", "--events=ipc:///s/local/engine-1.events"} <= set(words)
    assert words[-2:] == ["--decode-s", "0.01"]
    assert engine.readiness.kind == "inference"


def test_ranks_of_a_group_run_on_their_nodes_and_only_the_first_node_has_a_router(tmp_path: Path) -> None:
    head, rank = (parts_of(tmp_path, TWO_NODES, node=node) for node in ("n0", "n1"))
    assert list(head) == ["agent", "a", "router", "watchdog"]
    assert list(rank) == ["agent", "a-1", "watchdog"]
    assert value_after(command(head["a"]), "--host") == "10.0.0.1"
    assert "--headless" in command(rank["a-1"])
    assert rank["a-1"].readiness.kind == "running"
    assert rank["a-1"].url == ""
    assert value_after(command(head["router"]), "--host") == "10.0.0.1"


def test_a_shared_registry_puts_a_router_on_every_node(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, TWO_NODES + '[router]\nregistry = "etcd://10.0.0.9:2379"\n', node="n1")
    assert parts["router"].url == "http://10.0.0.2:8100"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("[router]\nport = 9000\n", {"router", "watchdog"}),
        ("[agent]\narena_bytes = 1000000\n", {"agent"}),
        ("[watchdog]\nprobe_period_s = 1\n", {"watchdog"}),
        ('[engine]\ndtype = "float32"\n', {"engine-1"}),
        ("[connector]\nsave = false\n", {"engine-1"}),
    ],
    ids=lambda text: text.split("\n")[0] if isinstance(text, str) else "",
)
def test_a_change_in_a_table_changes_the_parts_that_it_is_for(tmp_path: Path, text: str, changed: set[str]) -> None:
    before, after = parts_of(tmp_path), parts_of(tmp_path, text)
    assert {name for name in before if before[name].digest != after[name].digest} == changed


def test_another_shell_makes_no_difference(tmp_path: Path) -> None:
    other = Here(device="cpu", cores=(0, 1, 2, 3), python="/venv/bin/python", environ={"LANG": "C", "PATH": "/bin"})
    before, after = parts_of(tmp_path), parts_of(tmp_path, here=other)
    assert {part.digest for part in before.values()} == {part.digest for part in after.values()}


def test_names_of_fleets_make_good_file_names(tmp_path: Path) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text('[fleet]\nname = "a/b c"\n[engine]\nmodel = "/m"\n')
    spec, tables = read_fleet(file, {}), read_tables(file, {})
    assert arena_path(spec, tables.agent).endswith("-a_b_c-local.arena")
    assert agent_socket(tables, NodeFolder(Path("/n"))) == "/n/agent.sock"


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compilation-config"):
        parts_of(tmp_path, '[engine]\narguments = "--compilation-config 7"\n')


def test_the_python_of_this_command_runs_what_nothing_else_is_set_for() -> None:
    assert Here().python == sys.executable
