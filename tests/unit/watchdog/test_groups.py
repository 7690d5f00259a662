"""One order restarts all ranks of a group on all nodes, each once; pure decisions, and real etcd."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from kveik.errors import RegistryError, RestartError
from kveik.fleet.etcd_gateway import Entry, EtcdAddress, EtcdGateway, Snapshot, Write
from kveik.supervise.messages import ProcessView
from kveik.watchdog.groups import Budget, GroupFollower, GroupOrder, GroupRestarter, Orders, ended_ranks
from tests.agents import wait_until
from tests.etcd import Etcd, running_etcd


def recorded(**values: bytes | GroupOrder) -> Snapshot:
    """A snapshot; ``a`` is the order of group a, ``a_n0`` what node n0 has done."""
    entries = {}
    for revision, (name, value) in enumerate(values.items(), 1):
        raw = msgspec.json.encode(value) if isinstance(value, GroupOrder) else value
        entries[f"groups/{name.replace('_', '/')}"] = Entry(raw, revision)
    return Snapshot({**entries, "engines/a": Entry(b"{}", 9), "birth": Entry(b"x", 1)}, 9)


def order(generation: int) -> GroupOrder:
    return GroupOrder(generation=generation, why="hung", by="n1")


def test_an_order_is_due_until_the_node_has_carried_it_out() -> None:
    before = Orders.read(recorded(a=order(3), a_n0=b"2", a_n1=b"3"), "n0")
    assert before.due(["a"]) == ["a"]
    assert Orders.read(recorded(a=order(3), a_n0=b"3", a_n1=b"2"), "n0").due(["a"]) == []
    assert before.due([]) == []


def test_a_node_that_looks_for_the_first_time_begins_with_what_is_there() -> None:
    orders = Orders.read(recorded(a=order(3)), "n0")
    assert orders.unseen(["a", "b"]) == ["a", "b"]
    assert (orders.generation("a"), orders.generation("b")) == (3, 0)


def test_an_etcd_that_lost_its_data_counts_from_one_again_and_is_obeyed() -> None:
    assert Orders.read(recorded(a=order(1), a_n0=b"7"), "n0").due(["a"]) == ["a"]
    assert Orders.read(recorded(a_n0=b"7"), "n0").due(["a"]) == []


def test_what_is_no_order_counts_as_none_and_can_be_replaced() -> None:
    orders = Orders.read(recorded(a=b"garbage", a_n0=b"many"), "n0")
    assert (orders.generation("a"), orders.revisions["a"], orders.unseen(["a"])) == (0, 1, ["a"])


def view(name: str, state: str = "waiting", held: str = "", why: str = "exit code 1") -> ProcessView:
    return ProcessView(name=name, kind="engine", state=state, since_s=100.0, held=held, why=why)


def test_a_part_that_waits_for_an_order_tells_of_its_group() -> None:
    groups = {"a": ("a-1", "a-2"), "b": ("b-1",)}
    assert ended_ranks([view("a-2"), view("b-1", "ready"), view("x")], groups, 103.0) == {"a": "a-2 ended: exit code 1"}
    assert ended_ranks([view("a-1", why="")], groups, 103.0) == {"a": "a-1 ended: no reason is known"}


def test_a_part_that_is_held_or_was_seen_on_its_way_tells_of_nothing() -> None:
    groups = {"a": ("a-1",)}
    assert ended_ranks([view("a-1", held="roll")], groups, 103.0) == {}
    assert ended_ranks([view("a-1")], groups, 101.0) == {}
    assert ended_ranks([], groups, 103.0) == {}


def test_a_budget_is_used_up_and_comes_back_with_time() -> None:
    budget = Budget(2, 60.0)
    assert [budget.take(now_s) for now_s in (0.0, 1.0, 2.0, 59.0, 60.5, 61.5, 61.6)] == [
        True, True, False, False, True, True, False,
    ]  # fmt: skip
    assert not Budget(0, 60.0).take(0.0)


class Node:
    """A node that counts how often its ranks were restarted."""

    def __init__(self, etcd: Etcd, name: str, *groups: str) -> None:
        self.restarted: list[tuple[str, str]] = []
        self.broken = threading.Event()
        self.ended: dict[str, str] = {}
        gateway = EtcdGateway(EtcdAddress.parse(f"etcd://{etcd.address}"), deadline_s=2.0)
        self.follower = GroupFollower(
            gateway, name, groups or ("a",), self._restart, look_here=lambda: self.ended, budget=Budget(3, 600.0)
        )

    def _restart(self, group: str, why: str) -> None:
        if self.broken.is_set():
            raise RestartError("the supervisor is away")
        self.restarted.append((group, why))
        self.ended = {}


def look(etcd: Etcd, node: str) -> Orders:
    return Orders.read(EtcdGateway(EtcdAddress.parse(f"etcd://{etcd.address}")).snapshot(), node)


@contextmanager
def following(*nodes: Node) -> Iterator[None]:
    try:
        for node in nodes:
            node.follower.start()
        yield
    finally:
        for node in nodes:
            node.follower.stop()


def wait_done(etcd: Etcd, generation: int, *names: str, group: str = "a") -> None:
    for name in names:
        wait_until(lambda: look(etcd, name).done.get(group) == generation, f"{name} did {generation}", 30)  # noqa: B023


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def etcd(shared: Etcd) -> Etcd:
    """With nothing in it."""
    gateway = EtcdGateway(EtcdAddress.parse(f"etcd://{shared.address}"))
    gateway.commit([Write(key, None) for key in gateway.snapshot().entries] or [Write("x", None)], {})
    return shared


def test_one_order_restarts_the_ranks_of_every_node_once(etcd: Etcd) -> None:
    nodes = [Node(etcd, name) for name in ("n0", "n1", "n2")]
    with following(*nodes):
        wait_done(etcd, 0, "n0", "n1", "n2")
        told = GroupRestarter(nodes[1].follower, "a").restart("rank 3 is silent")
        assert told == "restart 1 of group a is ordered on all its nodes, by n1"
        wait_done(etcd, 1, "n0", "n1", "n2")
        nodes[1].follower.order("a", "dead")
        wait_done(etcd, 2, "n0", "n1", "n2")
    assert [node.restarted for node in nodes] == [[("a", "rank 3 is silent"), ("a", "dead")]] * 3


def test_two_nodes_that_notice_the_same_at_once_give_one_order(etcd: Etcd) -> None:
    nodes = [Node(etcd, name) for name in ("n0", "n1")]
    with following(*nodes), ThreadPoolExecutor(8) as pool:
        wait_done(etcd, 0, "n0", "n1")
        given = list(pool.map(lambda n: nodes[n % 2].follower.order("a", f"seen by n{n % 2}"), (0, 1)))
        last = look(etcd, "n0").generation("a")
        wait_done(etcd, last, "n0", "n1")
    assert [len(node.restarted) for node in nodes] == [last, last]
    assert {one.generation for one in given} == set(range(1, last + 1))


def test_after_another_nodes_order_was_carried_out_what_was_noticed_before_needs_none(etcd: Etcd) -> None:
    nodes = [Node(etcd, name) for name in ("n0", "n1")]
    with following(*nodes):
        wait_done(etcd, 0, "n0", "n1")
        nodes[0].follower.order("a", "dead")
        wait_done(etcd, 1, "n0", "n1")
        assert nodes[1].follower.order("a", "seen too late").generation == 1
    assert nodes[1].restarted == [("a", "dead")]


def test_a_watchdog_that_restarts_carries_nothing_out_twice_and_what_it_missed_once(etcd: Etcd) -> None:
    before, other = Node(etcd, "n0"), Node(etcd, "n1")
    with following(other):
        with following(before):
            wait_done(etcd, 0, "n0", "n1")
            other.follower.order("a", "first")
            wait_done(etcd, 1, "n0", "n1")
        other.follower.order("a", "while n0 was away")
        wait_done(etcd, 2, "n1")
        after = Node(etcd, "n0")
        with following(after):
            wait_done(etcd, 2, "n0")
    assert before.restarted == [("a", "first")]
    assert after.restarted == [("a", "while n0 was away")]


def test_a_rank_that_ended_has_its_group_restarted_by_the_node_that_sees_it(etcd: Etcd) -> None:
    nodes = [Node(etcd, name) for name in ("n0", "n1")]
    nodes[1].ended = {"a": "a-1 ended: exit code 1"}
    with following(*nodes):
        wait_done(etcd, 1, "n0", "n1")
    assert [node.restarted for node in nodes] == [[("a", "a-1 ended: exit code 1")]] * 2


def test_only_the_groups_of_a_node_concern_it(etcd: Etcd) -> None:
    with_a, with_b = Node(etcd, "n0", "a"), Node(etcd, "n1", "b")
    with following(with_a, with_b):
        wait_done(etcd, 0, "n0")
        wait_done(etcd, 0, "n1", group="b")
        with_a.follower.order("a", "dead")
        wait_done(etcd, 1, "n0")
        with_a.follower.order("b", "dead too")
        wait_done(etcd, 1, "n1", group="b")
    assert (with_a.restarted, with_b.restarted) == ([("a", "dead")], [("b", "dead too")])


def test_a_restart_that_fails_is_tried_again_and_holds_up_no_other_group(etcd: Etcd) -> None:
    node, other = Node(etcd, "n0"), Node(etcd, "n1", "a", "b")
    with following(node, other):
        wait_done(etcd, 0, "n0", "n1")
        node.broken.set()
        node.follower.order("a", "dead")
        wait_done(etcd, 1, "n1")
        assert look(etcd, "n0").done["a"] == 0
        node.broken.clear()
        wait_done(etcd, 1, "n0")
    assert node.restarted == [("a", "dead")]


def test_without_etcd_nothing_is_ordered_and_that_is_said(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        node = Node(etcd, "n0")
        with following(node):
            wait_done(etcd, 0, "n0")
            etcd.kill()
            with pytest.raises(RestartError, match="the restart of group a could not be ordered: etcd does not answer"):
                GroupRestarter(node.follower, "a").restart("dead")
            etcd.start()
            node.follower.order("a", "dead")
            wait_done(etcd, 1, "n0")
    assert node.restarted == [("a", "dead")]


def test_an_order_that_others_always_overtake_ends_in_an_error() -> None:
    class Busy(EtcdGateway):
        def snapshot(self) -> Snapshot:
            return Snapshot({}, 1)

        def commit(self, writes: object, unchanged: object) -> bool:
            return False

    follower = GroupFollower(Busy(EtcdAddress.parse("etcd://127.0.0.1:1")), "n0", ["a"], print)
    with pytest.raises(RegistryError, match="others change its orders all the time"):
        follower.order("a", "dead")
