"""A node's parts together: kept, changed, adopted, and ended in order."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kveik.errors import ConfigError, SuperviseError
from kveik.supervise.backoff import Pauses
from kveik.supervise.client import ControlClient
from kveik.supervise.keeper import Surroundings
from kveik.supervise.messages import ProcessView
from kveik.supervise.node_folder import NodeFolder
from kveik.supervise.part import Part
from kveik.supervise.supervisor import NodeIdentity, Supervisor
from tests.agents import wait_until
from tests.supervised import Changes, a_part, group_is_empty, runs


class Node:
    """A node whose description tests change at will, and its supervisor on a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = NodeFolder(folder / "node")
        self.logs = folder
        self.parts: dict[str, Part] = {}
        self.overrides: Mapping[str, Mapping[str, Any]] = {}
        self.changes = Changes()
        self.client = ControlClient(str(self.folder.control_socket))
        self.supervisor: Supervisor
        self._thread: threading.Thread
        for name, kind in (("agent", "agent"), ("engine-1", "engine"), ("router", "router"), ("watchdog", "watchdog")):
            self.describe(name, kind)

    def describe(self, name: str, kind: str = "engine", **fields: object) -> None:
        self.parts[name] = a_part(self.logs, name=name, kind=kind, **fields)

    def _described(self, config: Path, overrides: Mapping[str, Mapping[str, Any]]) -> Sequence[Part]:
        if config.name == "wrong.toml":
            raise ConfigError("wrong.toml is wrong")
        self.overrides = overrides
        return [
            msgspec.structs.replace(part, facts=str(overrides[name])) if overrides.get(name) else part
            for name, part in self.parts.items()
        ]

    def make(self) -> Supervisor:
        identity = NodeIdentity("fleet", "n0", Path("kveik.toml"), self.folder)
        around = Surroundings(Pauses(0.01, 0.02), tethered=False, listener=self.changes)
        return Supervisor(identity, self._described, around)

    def open(self) -> "Node":
        self.supervisor = self.make().open()
        self._thread = threading.Thread(target=self.supervisor.run)
        self._thread.start()
        return self

    def view(self, name: str) -> ProcessView:
        return self.client.view(name)

    def all_ready(self) -> dict[str, int]:
        """Wait until all parts are ready; their processes."""

        def ready() -> bool:
            return {view.state for view in self.client.status().processes} == {"ready"}

        wait_until(ready, "all parts are ready", 20)
        return {view.name: view.pid for view in self.client.status().processes}

    def end(self) -> None:
        if self._thread.is_alive():
            self.supervisor.down(0)
            self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path).open()
    yield node
    node.end()


def test_all_parts_are_started_and_told_with_their_processes(node: Node) -> None:
    pids = node.all_ready()
    status = node.client.status()
    assert (status.fleet, status.node, status.pid, status.config) == ("fleet", "n0", os.getpid(), "kveik.toml")
    assert list(pids) == ["agent", "engine-1", "router", "watchdog"]
    assert all(pids[view.name] in view.pids for view in status.processes)
    assert "engine-1 ready" in repr(node.supervisor)


def test_there_is_one_supervisor_a_node(node: Node) -> None:
    with pytest.raises(SuperviseError, match="another supervisor listens"):
        node.make().open()


def test_a_configuration_that_is_wrong_is_told_before_anything_starts(tmp_path: Path) -> None:
    node = Node(tmp_path)
    identity = NodeIdentity("fleet", "n0", Path("wrong.toml"), node.folder)
    supervisor = Supervisor(identity, node._described, Surroundings(Pauses(0.01, 0.02)))
    with pytest.raises(ConfigError, match=r"wrong\.toml is wrong"):
        supervisor.open()
    assert not node.folder.control_socket.exists()


def test_nothing_changes_where_nothing_differs(node: Node) -> None:
    pids = node.all_ready()
    assert node.client.apply("kveik.toml").told == "nothing to change"
    assert node.all_ready() == pids


def test_only_what_differs_is_changed(node: Node) -> None:
    before = node.all_ready()
    node.describe("engine-2")
    node.describe("router", "router", facts="another port")
    del node.parts["watchdog"]
    assert node.client.apply("new.toml").told == (
        "router is being restarted: its description changed; engine-2 is being started; "
        "watchdog is being stopped: it is no longer described"
    )
    wait_until(lambda: len(node.client.status().processes) == 4, "the watchdog is gone", 20)
    after = node.all_ready()
    assert list(after) == ["agent", "engine-1", "engine-2", "router"]
    assert {name for name in after if before.get(name) == after[name]} == {"agent", "engine-1"}
    assert group_is_empty(before["watchdog"])
    assert node.client.status().config == "new.toml"


def test_a_part_that_comes_back_while_it_leaves_is_started_again(node: Node) -> None:
    node.all_ready()
    engine = node.parts.pop("engine-1")
    node.client.apply("kveik.toml")
    node.parts["engine-1"] = engine
    told = node.client.apply("kveik.toml").told
    assert told in ("engine-1 is being restarted: described again", "engine-1 is being started")
    assert "engine-1" in node.all_ready()


def test_what_was_stopped_is_started_by_the_next_description_unless_it_is_held(node: Node) -> None:
    node.all_ready()
    node.client.stop("engine-1")
    node.client.wait("engine-1", lambda view: view.state == "stopped", 20)
    node.client.hold("engine-1", "drained by a person")
    assert node.client.apply("kveik.toml").told == "engine-1 is held (drained by a person) and left as it is"
    assert node.view("engine-1").held == "drained by a person"
    node.client.release("engine-1")
    assert node.client.apply("kveik.toml").told == "engine-1 is being started"
    node.all_ready()


def test_a_part_can_be_restarted_by_another_description_of_itself_alone(node: Node) -> None:
    before = node.all_ready()
    node.client.restart("engine-1", "roll", settings={"model": "/m2"}, config="new.toml")
    assert node.view("engine-1").state != "ready"
    after = node.all_ready()
    assert node.overrides == {"engine-1": {"model": "/m2"}}
    assert {name for name in after if before[name] != after[name]} == {"engine-1"}
    assert node.view("engine-1").why.startswith("after ")
    assert node.view("engine-1").restarts == 1


def test_orders_for_nobody_are_refused_with_the_names_that_are_known(node: Node) -> None:
    with pytest.raises(SuperviseError, match="no 'engine-9' here; known are agent, engine-1, router, watchdog"):
        node.client.restart("engine-9", "hung")
    del node.parts["engine-1"]
    with pytest.raises(SuperviseError, match=r"new\.toml no longer describes 'engine-1'"):
        node.client.restart("engine-1", "roll", config="new.toml")
    with pytest.raises(SuperviseError, match=r"wrong\.toml is wrong"):
        node.client.apply("wrong.toml")


def test_the_node_ends_kind_by_kind_and_leaves_nothing(node: Node) -> None:
    pids = node.all_ready()
    node.client.down()
    node._thread.join(30)
    assert all(map(group_is_empty, pids.values()))
    ended = [record.part for record in node.changes.records if record.after == "stopped"]
    assert ended == ["watchdog", "router", "engine-1", "agent"]
    assert sorted(path.name for path in node.folder.root.iterdir()) == ["control.sock.lock"]
    with pytest.raises(SuperviseError, match="no supervisor answers"):
        node.client.status()


def test_a_node_that_goes_down_takes_no_more_orders(tmp_path: Path) -> None:
    node = Node(tmp_path)
    supervisor = node.make().open()
    supervisor.down()
    with pytest.raises(SuperviseError, match="going down"):
        node.client.start("engine-1")
    wait_until(supervisor.tick, "everything ended")
    supervisor.close()


def killed(node: Node) -> dict[str, int]:
    """Leave the node as a supervisor that was killed does; the processes that run on."""
    supervisor = node.make().open()
    wait_until(
        lambda: not supervisor.tick() and {k.state.value for k in supervisor._keepers.values()} == {"ready"}, "ready"
    )
    assert supervisor._control is not None
    supervisor._control.close()
    return {name: keeper.view.pid for name, keeper in supervisor._keepers.items()}


def test_the_next_supervisor_adopts_what_runs(tmp_path: Path) -> None:
    node = Node(tmp_path)
    before = killed(node)
    os.kill(before["router"], signal.SIGKILL)
    node.describe("agent", "agent", facts="changed meanwhile")
    gone = node.parts.pop("watchdog")
    node.open()
    wait_until(lambda: len(node.client.status().processes) == 3, "what is no longer described left", 20)
    after = node.all_ready()
    assert after["engine-1"] == before["engine-1"]
    assert after["router"] != before["router"]
    assert after["agent"] != before["agent"]
    assert group_is_empty(before[gone.name])
    node.end()
    assert not any(map(runs, after.values()))


def test_a_supervisor_that_cannot_write_what_runs_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path)
    supervisor = node.make().open()
    supervisor.tick()
    node.folder.supervisor.with_name("supervisor.json.part").mkdir()
    supervisor.down(0)
    wait_until(supervisor.tick, "everything ended")
    supervisor.close()
    assert caplog.text.count("another supervisor would not find what runs") == 1


def test_a_look_that_fails_is_not_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    supervisor = node.make()
    looks = iter([True])
    sound = supervisor.tick

    def tick() -> bool:
        if next(looks, False):
            raise RuntimeError("unforeseen")
        return sound()

    monkeypatch.setattr(supervisor, "tick", tick)
    supervisor.open()
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    node.all_ready()
    node.client.down()
    thread.join(30)
    assert not thread.is_alive()
    assert "a look at the parts failed" in caplog.text
