"""What a client says when the other end is not as it should be."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kveik.errors import SuperviseError
from kveik.supervise.client import ControlClient
from kveik.supervise.control import ControlServer
from kveik.supervise.messages import Order, ProcessView, StatusAnswer


@contextmanager
def answering(path: Path, answer: bytes | None) -> Iterator[ControlClient]:
    """A socket that answers one line with these bytes; None: never."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        kept = []

        def serve() -> None:
            accepted, _ = listening.accept()
            accepted.recv(1000)
            if answer is None:
                kept.append(accepted)
            else:
                accepted.sendall(answer)
                accepted.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield ControlClient(str(path), deadline_s=0.2)
        thread.join(10)
        for sock in kept:
            sock.close()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "ended in the middle"),
        (b'{"fleet": "f"', "ended in the middle"),
        (b'{"fleet": "f"}\n', "does not know"),
        (b'{"error": "going down", "told": ""}\n', "going down"),
        (b"no json\n", "does not know"),
        (None, r"no answer within 0\.2 s"),
    ],
)
def test_an_answer_that_is_none_is_an_error_in_words(tmp_path: Path, answer: bytes | None, told: str) -> None:
    with answering(tmp_path / "s", answer) as client, pytest.raises(SuperviseError, match=told):
        client.status()


def test_where_nobody_listens_that_is_said_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(SuperviseError, match=f"no supervisor answers at {tmp_path}/none"):
        ControlClient(str(tmp_path / "none")).down()


def test_waiting_ends_when_the_part_is_as_wanted_or_says_how_it_is(tmp_path: Path) -> None:
    states = iter(["starting", "starting", "ready", "failed", "failed", "failed", "failed", "failed"])

    def tell(order: Order) -> StatusAnswer:
        view = ProcessView(name="a", kind="agent", state=next(states), why="no room")
        return StatusAnswer(fleet="f", node="n", pid=1, config="", processes=(view,))

    path = str(tmp_path / "s")
    server = ControlServer(path, tell).start()
    client = ControlClient(path)
    assert client.wait("a", lambda seen: seen.state == "ready", 10).state == "ready"
    with pytest.raises(SuperviseError, match=r"a is failed after 0\.1 s: no room"):
        client.wait("a", lambda seen: seen.state == "ready", 0.1)
    server.close()
