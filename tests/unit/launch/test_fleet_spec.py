"""A fleet in one file: which engines run where, and what is wrong with a file that says it wrongly."""

from pathlib import Path

import pytest

from kveik.errors import ConfigError
from kveik.launch.fleet_spec import FleetSpec, read_fleet

TWO_NODES = """
[engine]
model = "/models/m"
[[nodes]]
name = "n0"
address = "10.0.0.1"
[[nodes]]
name = "n1"
address = "10.0.0.2"
"""


def read(folder: Path, text: str, **given: object) -> FleetSpec:
    file = folder / "kveik.toml"
    file.write_text(text)
    return read_fleet(file, {}, given)


def test_a_number_of_engines_is_enough_on_one_machine(tmp_path: Path) -> None:
    fleet = read(tmp_path, '[fleet]\nengines = 2\nfirst_port = 9000\n[engine]\nmodel = "/models/m"\n')
    assert [(engine.name, engine.entry.port, engine.entry.node) for engine in fleet.engines] == [
        ("engine-1", 9000, "local"),
        ("engine-2", 9001, "local"),
    ]
    assert fleet.node.address == "127.0.0.1"


def test_an_engine_differs_from_the_common_settings_only_where_it_says_so(tmp_path: Path) -> None:
    fleet = read(
        tmp_path,
        '[engine]\nmodel = "/models/m"\ndtype = "float32"\narguments = "--max-num-seqs 4"\n'
        '[[launch]]\nname = "a"\n[[launch]]\nname = "b"\ndtype = "bfloat16"\nenvironment = "A=1 B=\'two words\'"\n',
    )
    first, second = fleet.engines
    assert (first.settings.dtype, second.settings.dtype) == ("float32", "bfloat16")
    assert first.arguments == second.arguments == ["--max-num-seqs", "4"]
    assert second.environment == {"A": "1", "B": "two words"}


def test_ranks_of_a_group_are_counted_over_its_nodes(tmp_path: Path) -> None:
    fleet = read(
        tmp_path,
        TWO_NODES + '[[launch]]\nname = "a"\nnode = "n0"\nport = 8000\ndata_parallel = 4\n'
        '[[launch]]\nname = "a-1"\nnode = "n1"\nhead = "a"\ndata_parallel_local = 2\n',
        node="n1",
    )
    head, rest = fleet.engines
    assert (head.start_rank, head.entry.data_parallel_local) == (0, 2)
    assert (rest.start_rank, rest.entry.data_parallel_local, rest.entry.data_parallel) == (2, 2, 4)
    assert rest.group == head.group == "a"
    assert head.entry.rpc_port == rest.entry.rpc_port == 9000
    assert fleet.engines_of("n1") == (rest,)
    assert fleet.node.address == "10.0.0.2"


def test_settings_of_single_engines_can_be_changed_after_reading(tmp_path: Path) -> None:
    fleet = read(tmp_path, '[fleet]\nengines = 2\n[engine]\nmodel = "/models/m"\ndtype = "float32"\n')
    first, second = fleet.with_settings({"engine-2": {"model": "/models/n"}}).engines
    assert (first.settings.model, second.settings.model, second.settings.dtype) == ("/models/m", "/models/n", "float32")
    with pytest.raises(ConfigError, match="settings of engine-1: engine: unknown setting 'modle'"):
        fleet.with_settings({"engine-1": {"modle": "/models/n"}})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TWO_NODES, "node is '', expected one of n0, n1"),
        (TWO_NODES + '[[launch]]\nname = "a"\nnode = "n7"\n', "entry 1 of launch: node is 'n7'"),
        ('[[launch]]\nname = "a"\n[[launch]]\nname = "a"\n', "the name 'a' is there 2 times"),
        ('[[launch]]\nname = "a"\nprot = 8\n', "entry 1 of launch: Object contains unknown field `prot`"),
        ('[[launch]]\nname = "a"\ndtype = 8\n', "entry 1 of launch: engine: dtype is 8, expected text"),
        ('[[launch]]\nname = "a"\nhead = "b"\n', "head is 'b', which is no engine here"),
        ('[[launch]]\nname = "a"\ndata_parallel = 3\ndata_parallel_local = 1\n', "has data_parallel = 3"),
        ('[[launch]]\nname = "a"\nport = 70000\n', "port is 70000, expected 1 to 65535"),
        ("launch = 1\n", "launch must be"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("(", r"\(")):
        _ = read(tmp_path, text).node
