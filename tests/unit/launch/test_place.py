"""A node on this machine, and who supervises it."""

import os
import socket
import threading
from pathlib import Path

import pytest

from kveik.errors import ConfigError, SuperviseError
from kveik.launch.place import Place
from kveik.supervise.control import ControlServer
from kveik.supervise.messages import Done, StatusAnswer
from kveik.supervise.part import Part
from kveik.supervise.states import State
from tests.agents import wait_until
from tests.supervised import Changes, a_part, never, script

TWO_NODES = '[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n'


def place_in(folder: Path, text: str = "", node: str = "") -> Place:
    file = folder / "kveik.toml"
    file.write_text(f'[fleet]\nname = "f"\nstate_folder = "{folder}/s"\nrestart_pause_s = 0.01\n{text}')
    return Place.find(file, node, {})


def test_a_node_is_found_by_its_name_whatever_else_is_wrong(tmp_path: Path) -> None:
    place = place_in(tmp_path, TWO_NODES + "[engine]\nno_such_setting = 1\n", "b")
    assert (place.node, place.folder.root) == ("b", tmp_path / "s" / "b")
    with pytest.raises(ConfigError, match="node is '', expected one of a, b"):
        place_in(tmp_path, TWO_NODES)
    with pytest.raises(ConfigError, match="unknown setting 'nmae'"):
        place_in(tmp_path, 'nmae = "x"\n')


def answer() -> StatusAnswer:
    return StatusAnswer(fleet="f", node="local", pid=os.getpid(), config="/c", processes=())


def test_without_a_supervisor_there_is_no_status(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    assert place.status() is None
    server = ControlServer(str(place.folder.control_socket), lambda order: answer()).start()
    assert place.status() == answer()
    server.close()
    assert place.status() is None


def test_a_socket_that_a_killed_supervisor_left_is_none(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    server = ControlServer(str(place.folder.control_socket), lambda order: answer())
    kept = tmp_path / "kept"
    os.link(place.folder.control_socket, kept)
    server.close()
    os.link(kept, place.folder.control_socket)
    assert place.status() is None


def test_a_supervisor_that_ends_while_it_is_asked_is_none(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    place.folder.root.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place.folder.control_socket))
        listening.listen()

        def end() -> None:
            accepted, _ = listening.accept()
            accepted.close()

        thread = threading.Thread(target=end)
        thread.start()
        assert place.status() is None
        thread.join(10)


def test_a_supervisor_that_does_not_answer_sensibly_is_an_error(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    server = ControlServer(str(place.folder.control_socket), lambda order: Done(error="out of order")).start()
    with pytest.raises(SuperviseError, match="out of order"):
        place.status()
    server.close()


def test_its_supervisor_knows_which_failures_a_simpler_mode_cannot_help(tmp_path: Path) -> None:
    """By the rules for engines: a port in use is no matter of modes."""
    place = place_in(tmp_path)
    code = "print('OSError: [Errno 98] Address already in use', flush=True); raise SystemExit(1)"
    ladder = (script(code, mode="compiled"), script(code, mode="eager"))
    part: Part = a_part(tmp_path, *ladder, name="e", kind="engine", readiness=never(tmp_path))
    supervisor = place.make_supervisor(lambda *_: [part], Changes(), tethered=True).open()

    def given_up() -> bool:
        supervisor.tick()
        return supervisor.views()[0].state == State.FAILED.value

    wait_until(given_up, "it is given up", 20)
    (view,) = supervisor.views()
    assert view.mode == "compiled"
    assert "it ended with exit code 1: its port is taken" in view.why
    supervisor.close()
