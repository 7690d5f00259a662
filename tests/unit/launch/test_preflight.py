"""What would keep a node from starting, said all at once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kveik.launch.fleet_spec import read_fleet
from kveik.launch.parts import Here, describe_node, read_tables
from kveik.launch.preflight import Found, Needs, PortNeed, PythonFound, needs_of, problems
from kveik.supervise.node_folder import node_folder

GIB = 1 << 30
NEEDS = Needs(
    ports=(PortNeed("engine-1", "127.0.0.1", 8001), PortNeed("router", "127.0.0.1", 8100)),
    models={"/models/m": ["engine-1", "engine-2"]},
    pythons={"/venv/bin/python": ["engine-1", "engine-2"]},
    connected_pythons={"/venv/bin/python"},
    engines={"engine-1": ("/models/m", GIB), "engine-2": ("/models/m", GIB)},
    arena="/dev/shm/a.arena",
    arena_bytes=4 * GIB,
    sockets={"agent.socket": "/s/agent.sock"},
    folder="/s",
    agent_socket="/s/agent.sock",
)
FOUND = Found(
    weights_bytes={"/models/m": 2 * GIB},
    pythons={"/venv/bin/python": PythonFound(vllm="0.32.0", kveik="1.0")},
    available_bytes=64 * GIB,
    shared_bytes=32 * GIB,
    kveik="1.0",
)


def told(needs: Needs = NEEDS, found: Found = FOUND) -> list[str]:
    return [str(problem) for problem in problems(needs, found)]


def test_nothing_is_said_where_nothing_stands_against_it() -> None:
    assert told() == []
    assert told(Needs(), Found()) == []


MEMORY = (
    "memory: 13.2 GiB are wanted (4.0 GiB for weights, 2.0 GiB for KV caches, 4.0 GiB for the arena, 3.2 GiB for 2 "
    "engines themselves), but 5.0 GiB are free: set a smaller engine.kv_cache_bytes or agent.arena_bytes, or fewer "
    "engines"
)


def test_everything_is_said_at_once() -> None:
    found = replace(
        FOUND,
        ports={("127.0.0.1", 8100): "it is in use by process 7 (nginx): stop that, or set another port"},
        models={"/models/m": "/models/m has no weights"},
        pythons={"/venv/bin/python": PythonFound(kveik="1.0")},
        available_bytes=5 * GIB,
        folder="the folder /s cannot be written",
        agent_lock="another agent listens at /s/agent.sock",
    )
    assert told(NEEDS, found) == [
        "fleet.state_folder: the folder /s cannot be written",
        "agent: another agent listens at /s/agent.sock: stop it, or set another agent.socket",
        "router: cannot listen on 127.0.0.1:8100: it is in use by process 7 (nginx): stop that, or set another port",
        "engine-1, engine-2: /models/m has no weights",
        "engine-1, engine-2: the Python /venv/bin/python has no vllm: install it, or set another engine.python",
        MEMORY,
    ]


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (PythonFound(trouble="No such file or directory"), "cannot be run: No such file or directory"),
        (PythonFound(), "has no vllm and no kveik"),
        (PythonFound(vllm="0.32.0"), "has no kveik"),
        (PythonFound(vllm="0.9.1", kveik="1.0"), r"has vLLM 0.9.1, expected 0.32: install that, or set shared_cache"),
        (PythonFound(vllm="0.320.0", kveik="1.0"), "has vLLM 0.320.0"),
        (PythonFound(vllm="0.32.1", kveik="0.9"), "has Kveik 0.9, but this is 1.0: make them equal"),
    ],
)
def test_an_engines_python_must_have_what_it_needs(python: PythonFound, said: str) -> None:
    (problem,) = told(NEEDS, replace(FOUND, pythons={"/venv/bin/python": python}))
    assert said in problem


def test_engines_that_share_nothing_may_have_another_vllm() -> None:
    needs = replace(NEEDS, connected_pythons=())
    assert told(needs, replace(FOUND, pythons={"/venv/bin/python": PythonFound(vllm="0.9.1", kveik="1.0")})) == []


def test_an_arena_must_fit_into_shared_memory_unless_it_is_there_already() -> None:
    (problem,) = told(NEEDS, replace(FOUND, shared_bytes=64 << 20))
    assert "an arena of 4.0 GiB does not fit into /dev/shm, which has 64.0 MiB left" in problem
    assert "--shm-size" in problem
    assert told(NEEDS, replace(FOUND, shared_bytes=64 << 20, arena_is_there=True)) == []


def test_ports_must_be_fixed_and_different() -> None:
    ports = (PortNeed("a", "h", 8001), PortNeed("b", "h", 8001), PortNeed("router", "h", 0))
    assert told(replace(NEEDS, ports=ports)) == [
        "b: port 8001 is that of a, too: set another port",
        "router: its port is 0, expected a fixed one, by which clients find it",
    ]


def test_paths_of_sockets_must_not_be_too_long() -> None:
    (problem,) = told(replace(NEEDS, sockets={"agent.socket": "/" + "a" * 120}))
    assert problem.startswith("agent.socket: /aaa")
    assert "too long for a Unix socket" in problem


def test_an_etcd_that_does_not_answer_is_named() -> None:
    needs = replace(NEEDS, registry="etcd://10.0.0.9:2379")
    (problem,) = told(needs, replace(FOUND, registry="connection refused"))
    assert "etcd://10.0.0.9:2379 does not answer (connection refused): start etcd first" in problem


def test_a_further_node_needs_to_know_routers() -> None:
    (problem,) = told(replace(NEEDS, several_nodes_without_registry=True))
    assert "only the first node has a router" in problem


def needs_in(
    folder: Path, text: str, running: tuple[str, ...] = (), node: str = "", environ: Mapping[str, str] | None = None
) -> Needs:
    file = folder / "kveik.toml"
    file.write_text(text)
    spec, tables = read_fleet(file, {}, {"node": node} if node else None), read_tables(file, {})
    parts = describe_node(spec, tables, Here(environ={}))
    return needs_of(spec, tables, node_folder(spec.settings, spec.node.name, {"HOME": "/h"}), parts, running, environ)


TEXT = '[fleet]\nengines = 2\n[engine]\nmodel = "/m"\nkv_cache_bytes = 5\n[agent]\narena_bytes = 7\n'


def test_needs_are_those_of_all_parts(tmp_path: Path) -> None:
    needs = needs_in(tmp_path, TEXT)
    assert [(need.part, need.port) for need in needs.ports] == [
        ("engine-1", 8001),
        ("engine-2", 8002),
        ("router", 8100),
    ]
    assert needs.models == {"/m": ["engine-1", "engine-2"]}
    assert needs.engines == {"engine-1": ("/m", 5), "engine-2": ("/m", 5)}
    assert needs.arena_bytes == 7
    assert needs.sockets["agent.socket"] == "/h/.local/state/kveik/kveik/local/agent.sock"


def test_the_longest_path_of_a_socket_in_the_nodes_folder_counts(tmp_path: Path) -> None:
    name = "e" * 90
    needs = needs_in(tmp_path, f'[fleet]\nstate_folder = "/s"\n[engine]\nmodel = "/m"\n[[launch]]\nname = "{name}"\n')
    assert needs.sockets["fleet.state_folder"] == f"/s/local/{name}.events"
    assert "too long for a Unix socket" in told(needs, Found())[0]


def test_what_runs_already_needs_nothing_more(tmp_path: Path) -> None:
    needs = needs_in(tmp_path, TEXT, running=("agent", "engine-1", "router"))
    assert [need.part for need in needs.ports] == ["engine-2"]
    assert set(needs.engines) == {"engine-2"}
    assert (needs.arena, needs.agent_socket) == ("", "")


def test_simulated_engines_need_ports_alone(tmp_path: Path) -> None:
    needs = needs_in(tmp_path, "[engine]\nsimulated = true\n")
    assert [need.part for need in needs.ports] == ["engine-1", "router"]
    assert (needs.models, needs.pythons, needs.engines) == ({}, {}, {})


@pytest.mark.parametrize("engine", ['arguments = "--api-key=secret"', 'environment = "VLLM_API_KEY=secret"'])
def test_an_engine_with_a_key_must_be_one_that_we_have(tmp_path: Path, engine: str) -> None:
    text = f"[engine]\nsimulated = true\n{engine}\n"
    needs = needs_in(tmp_path, text)
    (problem,) = told(needs, Found())
    assert problem == "engine-1: it asks for an API key: set KVEIK_ENGINE_API_KEY, or nobody here can ask it anything"
    assert "secret" not in problem
    assert needs_in(tmp_path, text, environ={"KVEIK_ENGINE_API_KEY": "secret"}).keyed == []


def test_a_node_without_a_router_has_no_port_of_one(tmp_path: Path) -> None:
    text = '[engine]\nmodel = "/m"\n[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n[[launch]]\nname = "e"\nnode = "b"\n'
    needs = needs_in(tmp_path, text, node="b")
    assert [need.part for need in needs.ports] == ["e"]
    assert needs.several_nodes_without_registry
    assert not needs_in(
        tmp_path, text + '[watchdog]\nrouters = "http://a:1"\n', node="b"
    ).several_nodes_without_registry
