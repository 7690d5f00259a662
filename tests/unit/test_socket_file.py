import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest

from kveik.errors import AgentError
from kveik.socket_file import SocketFile, peer_of


def listen(path: str) -> SocketFile:
    return SocketFile(path, owner="agent", setting="agent.socket", error=AgentError)


def test_the_socket_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    listening = listen(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    listening.close()
    assert not path.exists()


def test_the_kernel_says_who_connected(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    listening = listen(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        accepted, _ = listening.sock.accept()
        assert peer_of(accepted) == (os.getpid(), os.getuid())
        accepted.close()
    listening.close()


def test_a_living_agent_keeps_its_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    first = listen(path)
    with pytest.raises(AgentError, match="another agent listens"):
        listen(path)
    first.close()
    listen(path).close()


def test_an_owner_that_is_dying_is_waited_for(tmp_path: Path) -> None:
    """Its socket is closed already, and the lock goes a moment later."""
    path = str(tmp_path / "agent.sock")
    dying = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(dying, fcntl.LOCK_EX)
    gone = threading.Timer(0.3, lambda: os.close(dying))
    gone.start()
    listen(path).close()
    gone.join()


def test_a_lock_that_stays_is_somebodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kveik.socket_file.DYING_S", 0.2)
    path = str(tmp_path / "agent.sock")
    held = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(AgentError, match="another agent listens"):
        listen(path)
    os.close(held)


def test_a_socket_that_nobody_listens_to_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    listening = listen(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    listening.close()


def test_a_socket_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(path)
        foreign.listen()
        with pytest.raises(AgentError, match="another program listens"):
            listen(path)


def test_a_file_is_not_taken_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.write_text("notes")
    with pytest.raises(AgentError, match="is no socket"):
        listen(str(path))
    assert path.read_text() == "notes"


def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="too long"):
        listen(str(tmp_path / ("a" * 120)))


def test_a_folder_that_others_can_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(AgentError, match="changed by other users"):
        listen(str(tmp_path / "open" / "agent.sock"))


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder")
    with pytest.raises(AgentError, match=r"cannot use the folder .*run for the agent's socket"):
        listen(str(tmp_path / "run" / "agent.sock"))


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("data")
    (tmp_path / "agent.sock.lock").symlink_to(precious)
    with pytest.raises(AgentError, match=r"cannot create .*agent\.sock\.lock"):
        listen(str(tmp_path / "agent.sock"))
    assert precious.read_text() == "data"


def test_a_socket_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as foreign:
        foreign.bind(path)
        with pytest.raises(AgentError, match="somebody seems to listen at"):
            listen(path)
    assert Path(path).is_socket()


def test_a_failed_start_gives_the_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    (tmp_path / "agent.sock.starting").mkdir()
    with pytest.raises(AgentError, match="cannot listen at"):
        listen(str(path))
    (tmp_path / "agent.sock.starting").rmdir()
    listen(str(path)).close()


def test_what_a_killed_agent_left_half_made_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    (tmp_path / "agent.sock.starting").write_text("left behind")
    listening = listen(str(path))
    assert path.is_socket()
    assert not (tmp_path / "agent.sock.starting").exists()
    listening.close()


def test_closing_leaves_the_socket_of_a_later_agent(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    first = listen(str(path))
    path.unlink()
    with socket.socket(socket.AF_UNIX) as later:
        later.bind(str(path))
        first.close()
        assert path.exists()
