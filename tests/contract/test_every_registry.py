"""What every registry does, whatever keeps it: in a file, or in a real etcd."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.errors import ConfigError, RefusedError, UnknownEngineError
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.etcd import EtcdRegistry
from kveik.fleet.etcd_gateway import EtcdAddress, EtcdGateway
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.member_file import MemberFile
from kveik.fleet.membership import Membership
from kveik.fleet.registry import Registry
from kveik.records import Record, StateRecord
from tests.etcd import Etcd, running_etcd
from tests.fleet import engine

Opener = Callable[[], Registry]
PREFIXES = itertools.count()
RECORDS: list[Record] = []


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(params=["file", "etcd"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens a registry; again, after it was closed, as after a restart of the router."""
    RECORDS.clear()
    if request.param == "file":
        path = tmp_path / "run" / "fleet.json"
        return lambda: EmbeddedRegistry(MemberFile(path, lock_wait_s=0.0), listener=RECORDS.append)
    etcd: Etcd = request.getfixturevalue("etcd")
    address = EtcdAddress.parse(f"etcd://{etcd.address}/contract-{next(PREFIXES)}")
    return lambda: EtcdRegistry(EtcdGateway(address), listener=RECORDS.append)


@pytest.fixture
def registry(opener: Opener) -> Iterator[Registry]:
    registry = opener()
    yield registry
    registry.close()


def states(registry: Registry) -> dict[str, State]:
    return {member.name: member.state for member in registry.members()}


def wait_for(registry: Registry, condition: Callable[[Membership], bool]) -> Membership:
    until_s = time.monotonic() + 30
    view = registry.view
    while not condition(view):
        assert time.monotonic() < until_s, view
        view = registry.wait_change(view.revision, 1.0)
    return view


def test_an_engine_joins_proves_itself_renews_and_leaves(registry: Registry) -> None:
    assert registry.announce(engine(1)).state is State.ANNOUNCED
    assert registry.change_state("e1", Event.PROVE, "it answered").state is State.READY
    assert registry.renew("e1").state is State.READY
    assert registry.announce(engine(1)).state is State.READY
    assert states(registry) == {"e1": State.READY}
    registry.withdraw("e1", "bye")
    assert states(registry) == {}


def test_engines_are_listed_by_name(registry: Registry) -> None:
    for number in (3, 1, 2):
        registry.announce(engine(number))
    assert [member.name for member in registry.members()] == ["e1", "e2", "e3"]


def test_the_revision_grows_with_changes_and_not_with_heartbeats(registry: Registry) -> None:
    revisions = [registry.view.revision]
    registry.announce(engine(1))
    revisions.append(registry.view.revision)
    registry.change_state("e1", Event.DRAIN, "update")
    revisions.append(registry.view.revision)
    assert revisions[0] < revisions[1] < revisions[2]
    registry.renew("e1")
    registry.announce(engine(1))
    assert registry.view.revision == revisions[2]


def test_a_lease_that_ends_loses_the_engine_and_a_heartbeat_brings_it_back(registry: Registry) -> None:
    registry.announce(engine(1, lease_s=1.0))
    lost = wait_for(registry, lambda view: view.member("e1").state is State.LOST)
    assert lost.member("e1").why == "no heartbeat for 1 s"
    assert registry.renew("e1").state is State.ANNOUNCED


def test_heartbeats_keep_a_lease(registry: Registry) -> None:
    registry.announce(engine(1, lease_s=1.0))
    until_s = time.monotonic() + 2.5
    while time.monotonic() < until_s:
        assert registry.renew("e1").state is State.ANNOUNCED
        time.sleep(0.2)
    assert states(registry) == {"e1": State.ANNOUNCED}


@pytest.mark.parametrize(("event", "state"), [(Event.DRAIN, State.DRAINING), (Event.ISOLATE, State.ISOLATED)])
def test_a_hold_outlives_announcements_and_a_restart_of_the_router(opener: Opener, event: Event, state: State) -> None:
    registry = opener()
    registry.announce(engine(1))
    registry.change_state("e1", event, "for a reason")
    registry.announce(engine(1))
    registry.close()
    registry = opener()
    try:
        assert [(m.state, m.why) for m in registry.members()] == [(state, "for a reason")]
        assert registry.change_state("e1", Event.READMIT, "done").state is State.ANNOUNCED
    finally:
        registry.close()


def test_isolation_outlives_a_withdrawal_and_a_drain_does_not(registry: Registry) -> None:
    for number, event in ((1, Event.ISOLATE), (2, Event.DRAIN)):
        registry.announce(engine(number))
        registry.change_state(f"e{number}", event, "a reason")
        registry.withdraw(f"e{number}", "restart")
    assert states(registry) == {"e1": State.ISOLATED}
    assert registry.announce(engine(1)).state is State.ISOLATED
    assert registry.announce(engine(2)).state is State.ANNOUNCED


def test_a_listed_engine_has_no_lease_and_is_known_as_listed_after_a_restart(opener: Opener) -> None:
    registry = opener()
    assert registry.announce(engine(1), listed=True).lease_ends_s is None
    registry.announce(engine(1))  # it may announce itself too: the list's word stands
    registry.renew("e1")
    registry.close()
    registry = opener()
    try:
        assert [(m.listed, m.state) for m in registry.members()] == [(True, State.ANNOUNCED)]
    finally:
        registry.close()


def test_an_engine_that_became_another_one_proves_itself_again(registry: Registry) -> None:
    registry.announce(engine(1))
    registry.change_state("e1", Event.PROVE, "it answered")
    assert registry.announce(engine(1, models=("qwen3-8b", "adapter"))).state is State.READY
    assert registry.announce(engine(1, namespace="abcd")).state is State.READY  # it did not know before
    assert registry.announce(engine(1, namespace="ef01")).state is State.ANNOUNCED


def test_a_name_and_an_address_belong_to_one_engine(registry: Registry) -> None:
    registry.announce(engine(1))
    with pytest.raises(RefusedError, match="the name 'e1' belongs to"):
        registry.announce(engine(1, url="http://10.0.0.9:8000"))
    with pytest.raises(RefusedError, match=r"the address http://10.0.0.1:8000 belongs to"):
        registry.announce(engine(1, engine_id="e2"))
    assert states(registry) == {"e1": State.ANNOUNCED}


def test_what_makes_no_sense_or_is_not_there_changes_nothing(registry: Registry) -> None:
    registry.announce(engine(1))
    before = registry.view
    with pytest.raises(ConfigError):
        registry.announce(engine(2, url="nonsense"))
    for call in (
        lambda: registry.renew("e9"),
        lambda: registry.withdraw("e9", ""),
        lambda: registry.change_state("e9", Event.DRAIN, ""),
    ):
        with pytest.raises(UnknownEngineError):
            call()
    registry.change_state("e1", Event.ISOLATE, "hung")
    with pytest.raises(RefusedError):
        registry.change_state("e1", Event.PROVE, "it answered")
    assert before.member("e1").state is State.ANNOUNCED


def test_each_change_is_told_to_listeners_and_to_who_waits(registry: Registry) -> None:
    views: list[Membership] = []
    registry.subscribe(views.append)
    waited: list[Membership] = []
    waiter = threading.Thread(target=lambda: waited.append(registry.wait_change(views[0].revision, 30.0)))
    waiter.start()
    registry.announce(engine(1))
    registry.change_state("e1", Event.ISOLATE, "hung")
    waiter.join()
    assert waited[0].revision > views[0].revision
    assert [list(view.members) for view in views] == [[], ["e1"], ["e1"]]
    told = [record for record in RECORDS if isinstance(record, StateRecord)]
    assert told == [
        StateRecord("engine e1", "gone", "announced", "announced itself"),
        StateRecord("engine e1", "announced", "isolated", "hung"),
    ]


def test_threads_that_announce_at_once_all_get_in(registry: Registry) -> None:
    threads = [threading.Thread(target=registry.announce, args=(engine(number),)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(registry, lambda view: len(view.members) == 8)
    assert registry.trouble == ""
