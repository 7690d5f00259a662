"""Which groups the watchdog of a node restarts together with other nodes, and what it says where it cannot."""

from pathlib import Path

import pytest

from kveik.cli.watchdog import Source, group_follower, read_setup
from kveik.errors import ConfigError
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView
from kveik.watchdog.groups import GroupRestarter
from kveik.watchdog.restarters import ControlRestarter, NoRestarter
from tests.unit.cli.test_watchdog import parsed

FLEET = """
[fleet]
state_folder = "{folder}/state"
[router]
registry = "{registry}"
[[nodes]]
name = "n0"
address = "127.0.0.2"
[[nodes]]
name = "n1"
address = "127.0.0.3"
[[launch]]
name = "alone"
node = "n0"
[[launch]]
name = "g"
node = "n0"
data_parallel = 2
[[launch]]
name = "g-1"
node = "n1"
head = "g"
"""
CONTROL = ControlClient("/none")


def restarters(folder: Path, registry: str, node: str = "n0") -> dict[str, object]:
    """How each engine of a node is restarted."""
    file = folder / "kveik.toml"
    file.write_text(FLEET.format(folder=folder, registry=registry))
    setup = read_setup(parsed(f"--config={file}", f"--node={node}"), {})
    views = {name: ProcessView(name=name, kind="engine", state="ready") for name in ("alone", "g", "g-1")}
    source = Source(setup, CONTROL, group_follower(setup, CONTROL))
    return {patient.name: patient.restarter for patient in source(views)}


def test_a_group_with_ranks_elsewhere_is_restarted_by_an_order_and_others_by_their_supervisor(tmp_path: Path) -> None:
    found = restarters(tmp_path, "etcd://127.0.0.1:1")
    assert isinstance(found["g"], GroupRestarter)
    assert isinstance(found["alone"], ControlRestarter)
    assert restarters(tmp_path, "etcd://127.0.0.1:1", "n1") == {}  # ranks without an API server are no patients


def test_without_etcd_such_a_group_is_isolated_and_the_reason_said(tmp_path: Path) -> None:
    restarter = restarters(tmp_path, "")["g"]
    assert isinstance(restarter, NoRestarter)
    assert restarter.no_restart == "engine g has ranks on several nodes, which needs router.registry = etcd://..."


def test_a_registry_that_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the registry is 'redis://x'"):
        restarters(tmp_path, "redis://x")
