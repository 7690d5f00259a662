"""The membership in any order of calls, against what a fleet has to keep."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kveik.errors import FleetError
from kveik.fleet.lifecycle import HOLDS, TRANSITIONS, Event, State
from kveik.fleet.member_file import MemberFile
from kveik.fleet.membership import Membership, Retention, differences, same_to_others
from tests.fleet import engine

NUMBERS = st.integers(1, 4)
PEOPLE = st.sampled_from([Event.DRAIN, Event.ISOLATE, Event.READMIT, Event.PROVE])


class Fleet(RuleBasedStateMachine):
    """Keeps beside the membership: who is held, and when each engine was heard of last."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.fleet = Membership(retention=Retention(lost_s=30.0, hold_s=300.0))
        self.held: dict[str, State] = {}

    def step(self, after: Membership) -> None:
        before, self.fleet = self.fleet, after
        assert after.revision >= before.revision
        assert (after.revision > before.revision) == (not same_to_others(before, after))
        for record in differences(before, after):
            was, now = State(record.before), State(record.after)
            reachable = set(TRANSITIONS[was].values())
            # Several steps of the table may lie between two views: lost and then forgotten.
            assert now in reachable | {later for s in reachable for later in TRANSITIONS[s].values()}
        self.held = {name: state for name, state in self.held.items() if name in after.members}

    @rule(number=NUMBERS, address=NUMBERS, listed=st.booleans(), lease_s=st.sampled_from([0.0, 5.0, 15.0]))
    def announce(self, number: int, address: int, listed: bool, lease_s: float) -> None:
        words = engine(number, url=f"http://10.0.0.{address}:8000", lease_s=lease_s)
        try:
            after = self.fleet.announce(words, self.now_s, listed=listed)
        except FleetError:
            assert any(
                (member.announcement.url == words.url) != (member.name == words.name)
                for member in self.fleet.members.values()
            )
            return
        self.step(after)
        assert words.name in self.fleet.members

    @rule(number=NUMBERS)
    def renew(self, number: int) -> None:
        name = f"e{number}"
        try:
            self.step(self.fleet.renew(name, self.now_s))
        except FleetError:
            return
        assert not self.fleet.member(name).lease_over(self.now_s)

    @rule(number=NUMBERS, event=PEOPLE)
    def change(self, number: int, event: Event) -> None:
        name = f"e{number}"
        try:
            self.step(self.fleet.apply(name, event, "reason", self.now_s))
        except FleetError:
            return
        if event in (Event.DRAIN, Event.ISOLATE):
            self.held[name] = State.DRAINING if event is Event.DRAIN else State.ISOLATED
        elif event is Event.READMIT:
            self.held.pop(name, None)

    @rule(number=NUMBERS)
    def withdraw(self, number: int) -> None:
        name = f"e{number}"
        if name in self.fleet.members:
            self.step(self.fleet.apply(name, Event.WITHDRAW, "bye", self.now_s))
            assert (name in self.fleet.members) == (self.held.get(name) is State.ISOLATED)

    @rule(seconds=st.sampled_from([1.0, 6.0, 20.0, 40.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.step(self.fleet.tick(self.now_s))
        assert self.fleet.tick(self.now_s) is self.fleet

    @rule(seconds=st.sampled_from([0.0, 3600.0]))
    def restart(self, seconds: float) -> None:
        """The router ends, nothing runs for a while, and a new one reads its file."""
        with tempfile.TemporaryDirectory() as folder:
            file = MemberFile(Path(folder) / "fleet.json")
            file.save(self.fleet, self.now_s)
            loaded = file.load(self.fleet.retention, self.now_s + seconds)
            file.close()
        assert loaded.revision == self.fleet.revision
        assert same_to_others(loaded, self.fleet)
        for name, member in self.fleet.members.items():
            assert loaded.member(name).lease_over(self.now_s + seconds) == member.lease_over(self.now_s)
        self.now_s += seconds
        self.fleet = loaded

    @invariant()
    def a_hold_lasts_until_it_is_ended_or_forgotten(self) -> None:
        assert {m.name: m.state for m in self.fleet.members.values() if m.state in HOLDS} == self.held

    @invariant()
    def every_engine_is_kept_under_its_own_name_and_none_is_gone(self) -> None:
        for name, member in self.fleet.members.items():
            assert name == member.name
            assert member.state is not State.GONE

    @invariant()
    def no_engine_in_traffic_is_without_a_lease_that_holds(self) -> None:
        ticked = self.fleet.tick(self.now_s)
        for member in ticked.members.values():
            if member.state in (State.READY, State.ANNOUNCED):
                assert not member.lease_over(self.now_s)

    @invariant()
    def two_engines_in_traffic_never_share_an_address(self) -> None:
        addresses = [
            m.announcement.url for m in self.fleet.members.values() if m.state in (State.READY, State.ANNOUNCED)
        ]
        assert len(addresses) == len(set(addresses))


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
