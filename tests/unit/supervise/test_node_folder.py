"""Where a node keeps its files."""

from pathlib import Path

from kveik.config import FleetSettings
from kveik.supervise.node_folder import NodeFolder, node_folder


def test_a_configured_folder_holds_one_folder_a_node(tmp_path: Path) -> None:
    folder = node_folder(FleetSettings(state_folder=str(tmp_path)), "n0", {})
    assert folder.root == tmp_path / "n0"
    assert folder.control_socket == tmp_path / "n0" / "control.sock"
    assert folder.log("engine-1") == tmp_path / "n0" / "logs" / "engine-1.log"


def test_without_one_it_is_the_users_state_folder_by_the_fleets_name() -> None:
    settings = FleetSettings(name="demo")
    assert node_folder(settings, "local", {"XDG_STATE_HOME": "/s"}).root == Path("/s/kveik/demo/local")
    assert node_folder(settings, "local", {"HOME": "/home/me"}).root == Path("/home/me/.local/state/kveik/demo/local")


def test_no_two_files_of_a_node_are_one() -> None:
    folder = NodeFolder(Path("/n"))
    files = [
        folder.control_socket, folder.agent_socket, folder.logs, folder.events, folder.evidence, folder.watchdog,
        folder.starts, folder.supervisor, folder.registry,
    ]  # fmt: skip
    assert len(set(files)) == len(files)
    assert all(file.parent == folder.root for file in files)
