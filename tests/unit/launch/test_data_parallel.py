"""Which arguments make servers on several nodes one data-parallel group."""

from pathlib import Path

import pytest

from kveik.errors import ConfigError
from kveik.launch.data_parallel import data_parallel_arguments, groups_over_nodes, is_headless
from kveik.launch.fleet_spec import FleetSpec, read_fleet

ADDRESSES = ("100.100.135.173", "100.100.135.190")


def fleet(folder: Path, launch: str, addresses: tuple[str, ...] = ADDRESSES) -> FleetSpec:
    nodes = "".join(f'[[nodes]]\nname = "n{n}"\naddress = "{address}"\n' for n, address in enumerate(addresses))
    file = folder / "kveik.toml"
    file.write_text(f'[engine]\nmodel = "/models/m"\n{nodes}{launch}')
    return read_fleet(file, {})


def arguments(spec: FleetSpec) -> list[str]:
    return [" ".join(data_parallel_arguments(engine, spec)) for engine in spec.engines]


def test_an_engine_that_is_its_own_group_needs_none(tmp_path: Path) -> None:
    assert arguments(fleet(tmp_path, '[[launch]]\nname = "a"\nnode = "n0"\n')) == [""]


def test_two_nodes_with_a_rank_each_are_as_the_two_servers_of_a_glm_5_on_two_atlas_a2(tmp_path: Path) -> None:
    spec = fleet(
        tmp_path,
        '[[launch]]\nname = "glm-5"\nnode = "n0"\nport = 1025\ndata_parallel = 2\nrpc_port = 12890\n'
        '[[launch]]\nname = "glm-5-1"\nnode = "n1"\nport = 1026\nhead = "glm-5"\n',
    )
    group = (
        "--data-parallel-size 2 --data-parallel-size-local 1 "
        "--data-parallel-address 100.100.135.173 --data-parallel-rpc-port 12890"
    )
    assert arguments(spec) == [group, f"--headless {group} --data-parallel-start-rank 1"]
    assert [is_headless(engine) for engine in spec.engines] == [False, True]


def test_start_ranks_count_over_unequal_nodes(tmp_path: Path) -> None:
    spec = fleet(
        tmp_path,
        '[[launch]]\nname = "a"\nnode = "n0"\ndata_parallel = 7\n'
        '[[launch]]\nname = "a-1"\nnode = "n1"\nhead = "a"\ndata_parallel_local = 4\n'
        '[[launch]]\nname = "a-2"\nnode = "n1"\nhead = "a"\ndata_parallel_local = 2\n',
    )
    shown = arguments(spec)
    assert "--data-parallel-size-local 1 " in shown[0]
    assert shown[1].endswith("--data-parallel-start-rank 1")
    assert shown[2].endswith("--data-parallel-start-rank 5")
    assert all("--data-parallel-size 7" in text for text in shown)


def test_a_group_on_one_node_needs_no_address(tmp_path: Path) -> None:
    assert arguments(fleet(tmp_path, '[[launch]]\nname = "a"\nnode = "n0"\ndata_parallel = 4\n')) == [
        "--data-parallel-size 4"
    ]


def test_a_head_on_loopback_is_refused_where_other_nodes_are_not_there_too(tmp_path: Path) -> None:
    launch = '[[launch]]\nname = "a"\nnode = "n0"\ndata_parallel = 2\n[[launch]]\nname = "b"\nnode = "n1"\nhead = "a"\n'
    two_on_one_machine = fleet(tmp_path, launch, ("127.0.0.2", "127.0.0.3"))
    assert "--data-parallel-address 127.0.0.2" in arguments(two_on_one_machine)[1]
    with pytest.raises(ConfigError, match=r"node n0 has the address 127\.0\.0\.1, which the other nodes of engine a"):
        arguments(fleet(tmp_path, launch, ("127.0.0.1", "10.0.0.2")))


def test_groups_that_have_ranks_on_other_nodes_are_known_with_their_parts_here(tmp_path: Path) -> None:
    spec = fleet(
        tmp_path,
        '[[launch]]\nname = "here"\nnode = "n0"\ndata_parallel = 2\n'
        '[[launch]]\nname = "a"\nnode = "n0"\ndata_parallel = 3\n'
        '[[launch]]\nname = "a-1"\nnode = "n1"\nhead = "a"\n'
        '[[launch]]\nname = "a-0"\nnode = "n0"\nhead = "a"\n',
    )
    assert groups_over_nodes(spec, "n0") == {"a": ("a", "a-0")}
    assert groups_over_nodes(spec, "n1") == {"a": ("a-1",)}
    assert groups_over_nodes(spec, "n7") == {}
