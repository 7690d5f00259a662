"""Who restarts an engine: its supervisor, asked over a real socket, or a command."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kveik.errors import RestartError, RollError
from kveik.launch.keepers import CommandKeeper, SupervisedKeeper
from kveik.launch.roll_plan import Rolled
from kveik.supervise.client import ControlClient
from kveik.supervise.control import Answer, ControlServer
from kveik.supervise.messages import Done, Order, ProcessView, StatusAnswer

GROUP = Rolled("a", "http://a:8000", parts=("a", "a-1"))


class ShownNode:
    """A supervisor's ear with nothing behind it: it remembers orders and shows these processes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "n" / "control.sock"
        self.orders: list[Order] = []
        self.shown = ProcessView(name="a", kind="engine", state="ready", digest="d1", held="a reason")

    def answer(self, order: Order) -> Answer:
        if order.op == "status":
            return StatusAnswer(fleet="f", node="n", pid=1, config="", processes=(self.shown,))
        self.orders.append(order)
        return Done()


@contextmanager
def listening(folder: Path) -> Iterator[tuple[ShownNode, SupervisedKeeper]]:
    node = ShownNode(folder)
    node.path.parent.mkdir(mode=0o700)
    server = ControlServer(str(node.path), node.answer).start()
    try:
        yield node, SupervisedKeeper(ControlClient(str(node.path)), "/etc/kveik.toml")
    finally:
        server.close()


def test_a_supervisor_restarts_the_whole_group_with_what_the_file_says_now(tmp_path: Path) -> None:
    with listening(tmp_path) as (node, keeper):
        keeper.hold(GROUP, "roll")
        keeper.restart(GROUP, "roll")
        keeper.release(GROUP)
    assert [(order.op, order.name) for order in node.orders] == [
        ("hold", "a"),
        ("hold", "a-1"),
        ("restart", "a-1"),
        ("restart", "a"),
        ("release", "a"),
        ("release", "a-1"),
    ]
    restarts = [order for order in node.orders if order.op == "restart"]
    assert {(order.config, order.grace_s) for order in restarts} == {("/etc/kveik.toml", None)}, "in its own time"


def test_what_the_supervisor_knows_of_an_engine_is_told(tmp_path: Path) -> None:
    with listening(tmp_path) as (node, keeper):
        assert (keeper.held(GROUP), keeper.digest(GROUP), keeper.serves(GROUP)) == ("a reason", "d1", True)
        node.shown = ProcessView(name="a", kind="engine", state="starting")
        assert not keeper.serves(GROUP)


def test_an_engine_that_its_supervisor_has_given_up_is_an_error_with_the_reason_and_the_log(tmp_path: Path) -> None:
    with listening(tmp_path) as (node, keeper):
        node.shown = ProcessView(name="a", kind="engine", state="failed", why="no memory", log="/logs/a.log")
        with pytest.raises(RollError, match=r"a is failed: no memory; its log is /logs/a\.log"):
            keeper.serves(GROUP)


def test_a_command_restarts_an_engine_that_nobody_supervises(tmp_path: Path) -> None:
    done = tmp_path / "done"
    command = (sys.executable, "-c", f"import os; open({str(done)!r}, 'w').write(os.environ['KVEIK_ENGINE'])")
    engine = Rolled("b", "http://b:8000", command=command, start_s=60.0)
    keeper = CommandKeeper()
    keeper.hold(engine, "roll")
    keeper.restart(engine, "roll")
    keeper.release(engine)
    assert done.read_text() == "b"
    assert (keeper.held(engine), keeper.digest(engine), keeper.serves(engine)) == ("", "", True)


def test_a_command_that_fails_is_an_error_with_what_it_said() -> None:
    engine = Rolled("b", "http://b", command=(sys.executable, "-c", "print('no such unit'); exit(5)"), start_s=60.0)
    with pytest.raises(RestartError, match="code 5; it said: no such unit"):
        CommandKeeper().restart(engine, "roll")
