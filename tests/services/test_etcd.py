"""The registry on a real etcd: shared by routers, and through everything that happens to etcd."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.config import RouterSettings
from kveik.engine.process import free_port
from kveik.errors import FleetError, RefusedError, RegistryError, UnknownEngineError
from kveik.fleet.etcd import EtcdRegistry
from kveik.fleet.etcd_gateway import EtcdAddress, EtcdGateway, Write
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.member_file import MemberFile
from kveik.fleet.membership import Membership
from kveik.fleet.opening import open_registry
from kveik.records import Record, StateRecord
from tests.agents import wait_until
from tests.etcd import Etcd, running_etcd
from tests.fleet import engine

#: Above the time that etcd needs for an election, and short enough to wait for its end.
LEASE_S = 1.0


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Etcd]:
    """For tests that stop it."""
    with running_etcd(tmp_path) as etcd:
        yield etcd


class Routers:
    """Registries of several routers under one prefix; all closed at the end."""

    def __init__(self, etcd: Etcd, prefix: str) -> None:
        self.address = EtcdAddress.parse(f"etcd://{etcd.address}/{prefix}")
        self.records: list[Record] = []
        self._opened: list[EtcdRegistry] = []

    def open(self, copy: MemberFile | None = None) -> EtcdRegistry:
        gateway = EtcdGateway(self.address, deadline_s=0.5)
        registry = EtcdRegistry(gateway, copy=copy, listener=self.records.append)
        self._opened.append(registry)
        return registry

    def close(self) -> None:
        for registry in self._opened:
            registry.close()


@pytest.fixture
def routers(shared_etcd: Etcd, request: pytest.FixtureRequest) -> Iterator[Routers]:
    routers = Routers(shared_etcd, re.sub(r"\W", "_", request.node.name))
    yield routers
    routers.close()


@pytest.fixture
def own_routers(own_etcd: Etcd) -> Iterator[Routers]:
    routers = Routers(own_etcd, "fleet")
    yield routers
    routers.close()


def wait_for(registry: EtcdRegistry, condition: Callable[[Membership], bool], patience_s: float = 30.0) -> Membership:
    until_s = time.monotonic() + patience_s
    view = registry.view
    while not condition(view):
        assert time.monotonic() < until_s, f"{registry}: {view}"
        view = registry.wait_change(view.revision, 0.2)
    return view


def state_is(state: State, name: str = "e1") -> Callable[[Membership], bool]:
    return lambda view: name in view.members and view.members[name].state is state


def registry_is_back(registry: EtcdRegistry) -> None:
    until_s = time.monotonic() + 30
    while registry.trouble:
        assert time.monotonic() < until_s, registry.trouble
        time.sleep(0.02)


def is_put_back(address: EtcdAddress, count: int) -> None:
    """Wait until etcd has the records of so many engines."""
    gateway = EtcdGateway(address)
    until_s = time.monotonic() + 30
    while True:
        try:
            entries = gateway.snapshot().entries
        except RegistryError:
            entries = {}
        if sum(key.startswith("engines/") for key in entries) == count:
            return
        assert time.monotonic() < until_s, sorted(entries)
        time.sleep(0.02)


class Heart:
    """Heartbeats for engines, as their sidecars send them, with whatever errors a router gives."""

    def __init__(self, registry: EtcdRegistry, *names: str) -> None:
        self._registry, self._names = registry, names
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopped.wait(LEASE_S / 5):
            for name in self._names:
                try:
                    self._registry.renew(name)
                except FleetError:
                    pass  # the next one may get through

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


def test_what_one_router_is_told_all_routers_know(routers: Routers) -> None:
    first, second = routers.open(), routers.open()
    first.announce(engine(1))
    wait_for(second, state_is(State.ANNOUNCED))
    second.change_state("e1", Event.PROVE, "it answered")
    wait_for(first, state_is(State.READY))
    first.change_state("e1", Event.DRAIN, "update")
    drained = wait_for(second, state_is(State.DRAINING))
    assert drained.member("e1").why == "update"
    second.withdraw("e1", "bye")
    wait_for(first, lambda view: view.members == {})
    with pytest.raises(UnknownEngineError):
        first.renew("e1")


def test_a_change_reaches_another_router_within_a_quarter_of_a_second(routers: Routers) -> None:
    first, second = routers.open(), routers.open()
    first.announce(engine(1))
    wait_for(second, state_is(State.ANNOUNCED))
    took_s = []
    for event in (Event.ISOLATE, Event.READMIT, Event.ISOLATE):
        started_s = time.monotonic()
        view = second.view
        first.change_state("e1", event, "trial")
        assert second.wait_change(view.revision, 10.0).revision > view.revision
        took_s.append(time.monotonic() - started_s)
    assert min(took_s) < 0.25


@pytest.mark.slow
def test_a_lease_is_kept_by_heartbeats_at_any_router_and_its_end_is_seen_by_all(routers: Routers) -> None:
    first, second = routers.open(), routers.open()
    first.announce(engine(1, lease_s=LEASE_S))
    first.change_state("e1", Event.PROVE, "it answered")
    wait_for(second, state_is(State.READY))
    until_s = time.monotonic() + 3 * LEASE_S
    while time.monotonic() < until_s:
        for registry in (first, second):
            assert registry.renew("e1").state is State.READY
            time.sleep(LEASE_S / 5)
    lost = wait_for(first, state_is(State.LOST))
    assert lost.member("e1").why == "no heartbeat for 1 s"
    wait_for(second, state_is(State.LOST))
    assert second.renew("e1").state is State.ANNOUNCED
    wait_for(first, state_is(State.ANNOUNCED))


@pytest.mark.parametrize("end", ["withdrawn", "lease over"])
def test_isolation_outlives_the_engine_s_lease_and_withdrawal(routers: Routers, end: str) -> None:
    registry = routers.open()
    registry.announce(engine(1, lease_s=LEASE_S))
    registry.change_state("e1", Event.ISOLATE, "hung")
    if end == "withdrawn":
        registry.withdraw("e1", "restart")
    else:
        until_s = time.monotonic() + 30
        while registry.view.members["e1"].lease_ends_s == float("inf"):
            assert time.monotonic() < until_s
            time.sleep(0.05)
    assert registry.announce(engine(1, lease_s=LEASE_S)).state is State.ISOLATED
    assert registry.change_state("e1", Event.READMIT, "passed its probe").state is State.ANNOUNCED


def test_a_router_that_starts_anew_knows_the_fleet_at_once(routers: Routers) -> None:
    first = routers.open()
    first.announce(engine(1))
    first.change_state("e1", Event.PROVE, "it answered")
    first.announce(engine(2), listed=True)
    started_s = time.monotonic()
    members = routers.open().members()
    assert time.monotonic() - started_s < 1.0
    assert [(m.name, m.state, m.listed) for m in members] == [
        ("e1", State.READY, False),
        ("e2", State.ANNOUNCED, True),
    ]


@pytest.mark.slow
def test_leases_that_ended_while_no_router_ran_are_given_one_more_time(routers: Routers) -> None:
    first = routers.open()
    first.announce(engine(1, lease_s=LEASE_S))
    first.change_state("e1", Event.PROVE, "it answered")
    first.close()
    gateway = EtcdGateway(routers.address)
    until_s = time.monotonic() + 30
    while "leases/e1" in gateway.snapshot().entries:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    second = routers.open()
    assert second.view.member("e1").state is State.READY
    assert second.renew("e1").state is State.READY
    wait_for(second, state_is(State.LOST))


def test_a_name_and_an_address_belong_to_one_engine_for_all_routers(routers: Routers) -> None:
    first, second = routers.open(), routers.open()
    first.announce(engine(1))
    with pytest.raises(RefusedError, match="the name 'e1' belongs to"):
        second.announce(engine(1, url="http://10.0.0.9:8000"))
    with pytest.raises(RefusedError, match=r"the address http://10.0.0.1:8000 belongs to"):
        second.announce(engine(1, engine_id="e2"))


def test_routers_that_change_one_engine_at_once_never_break_the_table(routers: Routers) -> None:
    registries = [routers.open() for _ in range(3)]
    registries[0].announce(engine(1))
    wait_for(registries[2], state_is(State.ANNOUNCED))

    def change(registry: EtcdRegistry) -> None:
        for event in (Event.DRAIN, Event.ISOLATE, Event.READMIT) * 4:
            try:
                registry.change_state("e1", event, "trial")
            except (RefusedError, RegistryError):
                pass  # a drain of an isolated engine, or the others were faster each time

    threads = [threading.Thread(target=change, args=(registry,)) for registry in registries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    registries[0].change_state("e1", Event.ISOLATE, "the last word")
    for registry in registries:
        wait_for(registry, lambda view: view.member("e1").why == "the last word")


@pytest.mark.slow
def test_while_etcd_is_away_the_last_known_fleet_stands_and_then_all_goes_on(
    own_etcd: Etcd, own_routers: Routers
) -> None:
    registry = own_routers.open()
    registry.announce(engine(1, lease_s=LEASE_S))
    registry.change_state("e1", Event.PROVE, "it answered")
    registry.announce(engine(2, lease_s=LEASE_S))
    registry.change_state("e2", Event.ISOLATE, "hung")
    with Heart(registry, "e1", "e2"):
        own_etcd.kill()
        until_s = time.monotonic() + 3 * LEASE_S
        while time.monotonic() < until_s:
            assert {m.name: m.state for m in registry.members()} == {"e1": State.READY, "e2": State.ISOLATED}
            time.sleep(0.1)
        assert "etcd does not answer" in registry.trouble
        with pytest.raises(RegistryError, match="etcd does not answer"):
            registry.announce(engine(3))
        own_etcd.start()
        registry_is_back(registry)
        assert registry.change_state("e1", Event.DRAIN, "update").state is State.DRAINING
    told = [(r.before, r.after) for r in own_routers.records if isinstance(r, StateRecord) and r.part == "registry"]
    assert told == [("following", "away"), ("away", "following")]
    assert not [r for r in own_routers.records if isinstance(r, StateRecord) and r.after == "lost"]


def test_an_engine_is_isolated_while_etcd_is_away_here_at_once_and_elsewhere_afterwards(
    own_etcd: Etcd, own_routers: Routers
) -> None:
    first, second = own_routers.open(), own_routers.open()
    for number in (1, 2):
        first.announce(engine(number))
        first.change_state(f"e{number}", Event.PROVE, "it answered")
    wait_for(second, state_is(State.READY, "e2"))
    own_etcd.kill()
    assert first.change_state("e1", Event.ISOLATE, "hung").state is State.ISOLATED
    with pytest.raises(RefusedError):
        first.change_state("e1", Event.DRAIN, "update")
    with pytest.raises(UnknownEngineError):
        first.change_state("e9", Event.DRAIN, "update")
    assert state_is(State.ISOLATED)(first.view)
    assert state_is(State.READY)(second.view)
    states: set[State] = set()
    first.subscribe(lambda view: states.add(view.members["e1"].state))
    own_etcd.start()
    isolated = wait_for(second, state_is(State.ISOLATED))
    assert isolated.member("e1").why == "hung"
    assert isolated.member("e2").state is State.READY
    registry_is_back(first)
    assert states == {State.ISOLATED}
    assert second.change_state("e1", Event.READMIT, "fine again").state is State.ANNOUNCED
    wait_for(first, state_is(State.ANNOUNCED))


@pytest.mark.slow
def test_an_engine_is_isolated_at_once_while_etcd_hangs(own_etcd: Etcd, own_routers: Routers) -> None:
    registry = own_routers.open()
    registry.announce(engine(1))
    own_etcd.pause()
    try:
        until_s = time.monotonic() + 30
        while not registry.trouble:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        started_s = time.monotonic()
        assert registry.change_state("e1", Event.ISOLATE, "hung").state is State.ISOLATED
        for call in (
            lambda: registry.renew("e1"),
            lambda: registry.withdraw("e1", ""),
            lambda: registry.announce(engine(2)),
        ):
            with pytest.raises(RegistryError):
                call()
        assert time.monotonic() - started_s < 0.8  # no answer of etcd is waited for
    finally:
        own_etcd.resume()
    registry_is_back(registry)
    wait_for(own_routers.open(), state_is(State.ISOLATED))


@pytest.mark.slow
def test_an_etcd_that_hangs_longer_than_leases_last_costs_no_engine_its_place(
    own_etcd: Etcd, own_routers: Routers
) -> None:
    first, second = own_routers.open(), own_routers.open()
    first.announce(engine(1, lease_s=LEASE_S))
    first.change_state("e1", Event.PROVE, "it answered")
    with Heart(first, "e1"):
        own_etcd.pause()
        time.sleep(3 * LEASE_S)  # the pause itself: etcd counts this time against the lease
        wait_until(lambda: "etcd does not answer" in first.trouble, "the silence is noticed", 20)
        own_etcd.resume()
        registry_is_back(first)
        registry_is_back(second)
        until_s = time.monotonic() + 2 * LEASE_S
        while time.monotonic() < until_s:
            assert first.view.member("e1").state is State.READY
            assert second.view.member("e1").state is State.READY
            time.sleep(0.05)


def test_an_etcd_that_lost_its_data_is_given_what_the_routers_know(
    own_etcd: Etcd, own_routers: Routers, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = own_routers.open(), own_routers.open()
    first.announce(engine(1, lease_s=LEASE_S))
    first.change_state("e1", Event.PROVE, "it answered")
    first.announce(engine(2))
    first.change_state("e2", Event.ISOLATE, "hung")
    first.announce(engine(3), listed=True)
    known = {name: (m.state, m.why, m.listed) for name, m in first.view.members.items()}
    wait_for(second, lambda view: len(view.members) == 3 and view.members["e2"].state is State.ISOLATED)
    with Heart(second, "e1"):
        own_etcd.kill()
        own_etcd.lose_data()
        own_etcd.start()
        is_put_back(own_routers.address, 3)
        for registry in (first, second):
            registry_is_back(registry)
            assert {name: (m.state, m.why, m.listed) for name, m in registry.view.members.items()} == known
    assert "had lost its data" in caplog.text
    entries = EtcdGateway(own_routers.address).snapshot().entries
    assert {"engines/e1", "engines/e2", "engines/e3", "leases/e1", "leases/e2"} <= entries.keys()


def test_a_router_that_starts_while_etcd_is_away_goes_by_its_copy(
    own_etcd: Etcd, own_routers: Routers, tmp_path: Path
) -> None:
    path = tmp_path / "copy" / "fleet.json"
    first = own_routers.open(MemberFile(path))
    first.announce(engine(1))
    first.change_state("e1", Event.PROVE, "it answered")
    first.close()
    own_etcd.kill()
    second = own_routers.open(MemberFile(path))
    assert [(m.name, m.state) for m in second.members()] == [("e1", State.READY)]
    assert "etcd does not answer" in second.trouble
    own_etcd.start()
    registry_is_back(second)
    assert second.renew("e1").state is State.READY


def test_what_others_wrote_under_the_prefix_is_named_and_left_alone(
    routers: Routers, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = EtcdGateway(routers.address)
    assert gateway.commit([Write("engines/alien", b"{}"), Write("engines/e7", b"\xff")], {})
    registry = routers.open()
    registry.announce(engine(1))
    assert [member.name for member in registry.members()] == ["e1"]
    assert "not understood and left alone: engines/alien, engines/e7" in caplog.text
    assert gateway.snapshot().entries["engines/alien"].value == b"{}"


def test_prefixes_do_not_see_each_other(shared_etcd: Etcd) -> None:
    one, other = Routers(shared_etcd, "blue"), Routers(shared_etcd, "blue-green")
    try:
        first, second = one.open(), other.open()
        first.announce(engine(1))
        second.announce(engine(2))
        assert [m.name for m in first.members()] == ["e1"]
        assert [m.name for m in second.members()] == ["e2"]
    finally:
        one.close()
        other.close()


def test_another_endpoint_is_used_where_one_does_not_answer(shared_etcd: Etcd, tmp_path: Path) -> None:
    dead = free_port()
    settings = RouterSettings(
        registry=f"etcd://127.0.0.1:{dead},{shared_etcd.address}/two-endpoints",
        registry_file=str(tmp_path / "run" / "fleet.json"),
    )
    registry = open_registry(settings)
    try:
        assert registry.trouble == ""
        assert registry.announce(engine(1)).state is State.ANNOUNCED
    finally:
        registry.close()
    assert MemberFile(tmp_path / "run" / "fleet.json").path.exists()


def test_closing_does_not_wait_for_the_next_change(routers: Routers) -> None:
    registry = routers.open()
    started_s = time.monotonic()
    registry.close()
    assert time.monotonic() - started_s < 1.0


@pytest.mark.slow
def test_a_grown_fleet_is_put_back_in_pieces_that_etcd_takes(own_etcd: Etcd, own_routers: Routers) -> None:
    registry = own_routers.open()
    for number in range(1, 101):
        registry.announce(engine(number))
    with Heart(registry, "e1"):
        own_etcd.kill()
        own_etcd.lose_data()
        own_etcd.start()
        is_put_back(own_routers.address, 100)
        assert len(registry.view.members) == 100
    assert {m.state for m in own_routers.open().members()} == {State.ANNOUNCED}
