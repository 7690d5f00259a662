"""Orders over the control socket: what is understood, what is refused, and that no client holds up another."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.errors import SuperviseError
from kveik.supervise.client import ControlClient
from kveik.supervise.control import CONNECTIONS_MAX, LINE_BYTES_MAX, ControlServer, read_order
from kveik.supervise.messages import Done, Order, ProcessView, StatusAnswer
from tests.agents import wait_until

ENGINE = ProcessView(name="engine-1", kind="engine", state="ready", pid=7, pids=(7, 8))


class Ear:
    """A supervisor that only listens."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.heard: list[Order] = []
        self.server = ControlServer(self.path, self.hear).start()
        self.client = ControlClient(self.path)

    def hear(self, order: Order) -> StatusAnswer | Done:
        self.heard.append(order)
        if order.op == "status":
            return StatusAnswer(fleet="f", node="n", pid=1, config="/c", processes=(ENGINE,))
        if order.name == "nobody":
            raise SuperviseError("there is no 'nobody' here")
        if order.name == "bug":
            raise KeyError("bug")
        return Done(told=f"{order.op} of {order.name}")


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    listening = Ear(tmp_path / "control.sock")
    yield listening
    listening.server.close()


def test_the_status_comes_back_as_it_was_told(ear: Ear) -> None:
    answer = ear.client.status()
    assert (answer.fleet, answer.node, answer.processes) == ("f", "n", (ENGINE,))
    assert ear.client.view("engine-1") == ENGINE
    with pytest.raises(SuperviseError, match="keeps no 'engine-9'"):
        ear.client.view("engine-9")


def test_every_order_arrives_with_all_that_it_says(ear: Ear) -> None:
    assert ear.client.start("a").told == "start of a"
    ear.client.stop("a", 3)
    ear.client.restart("a", "hung", grace_s=0, settings={"model": "/m"}, config="/c.toml")
    ear.client.hold("a", "roll")
    ear.client.release("a")
    ear.client.apply("/c.toml")
    ear.client.down()
    assert ear.heard == [
        Order(op="start", name="a"),
        Order(op="stop", name="a", grace_s=3.0),
        Order(op="restart", name="a", why="hung", grace_s=0.0, settings={"model": "/m"}, config="/c.toml"),
        Order(op="hold", name="a", why="roll"),
        Order(op="release", name="a"),
        Order(op="apply", config="/c.toml"),
        Order(op="down"),
    ]


def test_a_refusal_is_an_error_in_the_same_words(ear: Ear) -> None:
    with pytest.raises(SuperviseError, match="there is no 'nobody' here"):
        ear.client.start("nobody")


def test_an_order_that_fails_leaves_the_ear_open(ear: Ear) -> None:
    with pytest.raises(SuperviseError, match="failed at this order: KeyError"):
        ear.client.start("bug")
    assert ear.client.start("a").told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "that is no order"),
        (b'{"op": "status", "nam": "a"}', "unknown field `nam`"),
        (b'{"op": "dance"}', "op is 'dance', expected one of status, start"),
        (b'{"op": "stop"}', "name is empty"),
        (b'{"op": "stop", "name": "a", "grace_s": -1}', "grace_s is -1"),
        (b"[" * 5000, "that is no order"),
    ],
)
def test_what_is_no_order_is_refused_in_words(line: bytes, told: str) -> None:
    with pytest.raises(SuperviseError, match=told):
        read_order(line)


def test_the_socket_is_for_its_owner_only_and_goes_with_the_server(tmp_path: Path) -> None:
    ear = Ear(tmp_path / "run" / "control.sock")
    assert Path(ear.path).stat().st_mode & 0o777 == 0o600
    with pytest.raises(SuperviseError, match="another supervisor listens"):
        ControlServer(ear.path, ear.hear)
    ear.server.close()
    with pytest.raises(SuperviseError, match="no supervisor answers"):
        ear.client.status()


def connect(ear: Ear) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(ear.path)
    return sock


def test_a_client_that_says_nothing_or_half_a_line_holds_up_nobody(ear: Ear) -> None:
    with connect(ear), connect(ear) as half:
        half.sendall(b'{"op": "sta')
        assert ear.client.status().fleet == "f"
        half.sendall(b'tus"}\n')
        assert half.recv(10).startswith(b'{"fleet"')


def test_several_orders_on_one_connection_are_answered_in_turn(ear: Ear) -> None:
    with connect(ear) as sock, sock.makefile("rb") as answers:
        sock.sendall(b'{"op": "start", "name": "a"}\n{"op": "start", "name": "b"}\n')
        assert b"start of a" in answers.readline()
        assert b"start of b" in answers.readline()


def test_a_line_without_end_ends_the_connection(ear: Ear) -> None:
    with connect(ear) as sock:
        with pytest.raises(OSError):  # noqa: PT012 (where it is noticed depends on the buffers)
            for _ in range(100):
                sock.sendall(b"x" * LINE_BYTES_MAX)
        assert ear.client.status().fleet == "f"


def test_more_connections_than_there_is_room_for_are_closed(ear: Ear) -> None:
    crowd = [connect(ear) for _ in range(CONNECTIONS_MAX)]
    with pytest.raises(SuperviseError, match=r"ended in the middle|no supervisor answers"):
        ear.client.status()
    for sock in crowd:
        sock.close()
    wait_until(lambda: answers(ear), "there is room again")


def answers(ear: Ear) -> bool:
    try:
        return ear.client.status().fleet == "f"
    except SuperviseError:
        return False
