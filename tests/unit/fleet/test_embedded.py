import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.clock import FakeClock
from kveik.errors import ConfigError, RefusedError, UnknownEngineError
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.lifecycle import Event, State
from kveik.fleet.member_file import MemberFile
from kveik.fleet.membership import Membership, Retention
from kveik.records import Record, StateRecord
from tests.fleet import engine


class Restartable:
    """A registry with a clock of its own that can be ended and started again on the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.records: list[Record] = []
        self.registry = self.start()

    def start(self) -> EmbeddedRegistry:
        file = MemberFile(self.path, lock_wait_s=0.0)
        retention = Retention(lost_s=60.0, hold_s=600.0)
        return EmbeddedRegistry(
            file, retention=retention, listener=self.records.append, clock=self.clock, ticking=False
        )

    def kill(self) -> None:
        """What kill -9 leaves: the file as it is, and a lock that is free."""
        self.registry._file.close()
        self.registry = self.start()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.registry.tick()

    def states(self) -> dict[str, State]:
        return {member.name: member.state for member in self.registry.members()}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Restartable]:
    fleet = Restartable(tmp_path / "run" / "fleet.json")
    yield fleet
    fleet.registry.close()


def test_engines_their_states_and_reasons_are_known_again_after_a_kill(
    fleet: Restartable, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.registry.announce(engine(1))
    fleet.registry.change_state("e1", Event.PROVE, "it answered")
    fleet.registry.announce(engine(2))
    fleet.registry.change_state("e2", Event.ISOLATE, "hung")
    before = fleet.registry.view
    fleet.records.clear()
    with caplog.at_level("INFO"):
        fleet.kill()
    assert f"known from {fleet.path}: e1 ready, e2 isolated" in caplog.text
    assert fleet.records == []
    assert fleet.registry.view.members == before.members
    assert fleet.registry.view.revision == before.revision
    assert fleet.states() == {"e1": State.READY, "e2": State.ISOLATED}


def test_a_lease_goes_on_after_a_restart_for_its_remaining_time(fleet: Restartable) -> None:
    fleet.registry.announce(engine(1))
    for _ in range(20):
        fleet.pass_time(5.0)
        fleet.registry.renew("e1")
    fleet.clock.advance(3600.0)
    fleet.kill()
    assert fleet.states() == {"e1": State.ANNOUNCED}
    fleet.pass_time(9.0)
    assert fleet.states() == {"e1": State.ANNOUNCED}
    fleet.pass_time(6.0)
    assert fleet.states() == {"e1": State.LOST}
    assert StateRecord("engine e1", "announced", "lost", "no heartbeat for 15 s") in fleet.records


def test_heartbeats_are_written_now_and_then_and_changes_at_once(fleet: Restartable) -> None:
    fleet.registry.announce(engine(1))
    first = fleet.path.stat().st_ino
    fleet.clock.advance(1.0)
    fleet.registry.renew("e1")
    assert fleet.path.stat().st_ino == first
    fleet.clock.advance(1.0)
    fleet.registry.renew("e1")
    second = fleet.path.stat().st_ino
    assert second != first
    fleet.registry.change_state("e1", Event.DRAIN, "update")
    assert fleet.path.stat().st_ino != second


def test_lost_engines_are_shown_for_a_while_and_then_forgotten(fleet: Restartable) -> None:
    fleet.registry.announce(engine(1))
    fleet.pass_time(15.0)
    assert fleet.states() == {"e1": State.LOST}
    fleet.pass_time(60.0)
    assert fleet.states() == {}
    with pytest.raises(UnknownEngineError):
        fleet.registry.renew("e1")


def test_every_change_is_told_with_its_view_and_heartbeats_are_not(fleet: Restartable) -> None:
    views: list[Membership] = []
    fleet.registry.subscribe(views.append)
    fleet.registry.announce(engine(1))
    fleet.registry.renew("e1")
    fleet.registry.withdraw("e1", "bye")
    assert [len(view.members) for view in views] == [0, 1, 0]
    assert [view.revision for view in views] == [0, 1, 2]


def test_who_waits_for_a_change_is_woken_by_it(fleet: Restartable) -> None:
    seen: list[Membership] = []
    waiter = threading.Thread(target=lambda: seen.append(fleet.registry.wait_change(0, 30.0)))
    waiter.start()
    fleet.registry.announce(engine(1))
    waiter.join(30.0)
    assert [view.revision for view in seen] == [1]
    assert fleet.registry.wait_change(1, 0.01).revision == 1


def test_what_makes_no_sense_changes_nothing(fleet: Restartable) -> None:
    fleet.registry.announce(engine(1))
    view = fleet.registry.view
    with pytest.raises(ConfigError):
        fleet.registry.announce(engine(2, url="ftp://x"))
    with pytest.raises(RefusedError):
        fleet.registry.announce(engine(1, url="http://10.0.0.9:1"))
    with pytest.raises(UnknownEngineError):
        fleet.registry.withdraw("e9", "")
    assert fleet.registry.view is view


def test_a_disk_that_is_full_is_told_once_and_does_not_stop_the_fleet(
    fleet: Restartable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        fleet.registry.announce(engine(1))
        fleet.registry.announce(engine(2))
        assert fleet.states() == {"e1": State.ANNOUNCED, "e2": State.ANNOUNCED}
        assert "No space left" in fleet.registry.trouble
    fleet.pass_time(2.0)
    assert fleet.registry.trouble == ""
    told = [(r.before, r.after) for r in fleet.records if isinstance(r, StateRecord) and r.part == "registry file"]
    assert told == [("sound", "failing"), ("failing", "sound")]
    fleet.kill()
    assert set(fleet.states()) == {"e1", "e2"}


def test_time_passes_by_itself_where_nobody_moves_it(tmp_path: Path) -> None:
    registry = EmbeddedRegistry(MemberFile(tmp_path / "run" / "fleet.json"))
    try:
        registry.announce(engine(1, lease_s=1.0))
        assert registry.wait_change(1, 30.0).member("e1").state is State.LOST
    finally:
        registry.close()


def test_a_listener_that_fails_does_not_stop_the_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing(record: Record) -> None:
        if isinstance(record, StateRecord) and record.after == "lost":
            raise ValueError("a defect")

    file = MemberFile(tmp_path / "run" / "fleet.json")
    registry = EmbeddedRegistry(file, retention=Retention(lost_s=0.5), listener=failing)
    try:
        registry.announce(engine(1, lease_s=1.0))
        assert registry.wait_change(1, 30.0).members
        assert registry.wait_change(2, 30.0).members == {}
        assert "a tick of the registry failed" in caplog.text
    finally:
        registry.close()


ANNOUNCE_FOR_EVER = """
import sys
from pathlib import Path
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.lifecycle import Event
from kveik.fleet.member_file import MemberFile
from tests.fleet import engine
registry = EmbeddedRegistry(MemberFile(Path(sys.argv[1])))
registry.announce(engine(1))
print("up", flush=True)
while True:
    registry.change_state("e1", Event.ISOLATE, "hung")
    registry.change_state("e1", Event.READMIT, "fine")
"""


def test_a_kill_in_the_middle_of_writing_leaves_a_file_that_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run" / "fleet.json"
    root = Path(__file__).resolve().parents[3]
    revisions = []
    for pause_s in (0.02, 0.05, 0.03):
        writer = subprocess.Popen(
            [sys.executable, "-c", ANNOUNCE_FOR_EVER, str(path)], cwd=root, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "up\n"
        time.sleep(pause_s)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        registry = EmbeddedRegistry(MemberFile(path), ticking=False)
        assert [member.name for member in registry.members()] == ["e1"]
        revisions.append(registry.view.revision)
        registry.close()
    assert revisions == sorted(set(revisions))
    assert not path.with_name("fleet.json.not-understood").exists()
