"""What a watch does with its engine, one step after the other; whole healings are in tests/faults/test_watchdog.py."""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.config_fleet import WatchdogSettings
from kveik.engine.process import free_port
from kveik.errors import RestartError
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.simulate.server import SimServer
from kveik.telemetry.events import EventLog, read_events
from kveik.watchdog.announcing import Door, RouterView, Shown, Wish
from kveik.watchdog.evidence import EvidenceFolder
from kveik.watchdog.healing import Healing, Stage
from kveik.watchdog.leaks import Decay
from kveik.watchdog.reference import References
from kveik.watchdog.restarters import NoRestarter
from kveik.watchdog.state_file import Remembered, StateFile
from kveik.watchdog.verdict import Condition
from kveik.watchdog.ward import Patient, Status, Ward
from kveik.watchdog.watch import Watch
from tests.agents import wait_until


class Bench:
    """One simulated engine and what a watch needs; no router answers, but what one shows can be set."""

    def __init__(self, folder: Path, engine: SimServer) -> None:
        self.folder = folder
        self.engine = engine
        self.views: dict[str, RouterView] = {}
        self.status: Status | None = None
        self.state = StateFile(folder / "run" / "watchdog.json")

    def watch(self, settings: dict[str, Any] | None = None, **given: Any) -> Watch:
        words = EngineAnnouncement(url=self.engine.url, engine_id="engine-1", lease_s=60.0)
        patient = Patient("engine-1", self.engine.url, NoRestarter("a test"), words, **given)
        ward = Ward(
            node="n0",
            settings=WatchdogSettings(**{"probe_period_s": 0.2, "probe_deadline_s": 5.0, **(settings or {})}),
            state=self.state,
            evidence=EvidenceFolder(self.folder / "evidence", bundles_max=3, py_spy=""),
            events=EventLog(self.folder / "run" / "events.jsonl", bytes_max=1 << 20),
            references=References(),
            routers=[FleetClient(f"127.0.0.1:{free_port()}")],
            views=lambda: self.views,
            status=lambda: self.status,
        )
        return Watch(patient, ward)

    def shown(self, watch: Watch, state: str, why: str = "") -> None:
        """What the router shows from now on."""
        watch.step()
        self.views = {"r": RouterView(float("inf"), {"engine-1": Shown(state, why)})}

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in read_events(self.folder / "run" / "events.jsonl")]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with SimServer() as engine:
        bench = Bench(tmp_path, engine)
        yield bench
        bench.state.close()


def stepped_until(watch: Watch, wanted: Stage | Callable[[], bool]) -> None:
    def there() -> bool:
        watch.step()
        return watch.healing.stage is wanted if isinstance(wanted, Stage) else wanted()

    wait_until(there, f"it is {wanted}: {watch!r}", 60)


def test_an_engine_that_answers_is_announced_though_no_router_answers(bench: Bench) -> None:
    watch = bench.watch()
    stepped_until(watch, Stage.SERVING)
    assert bench.kinds == ["announced"]
    assert watch.door.wish is Wish.OPEN
    assert watch.told == ""
    assert any("refused" in warning for warning in watch.warnings), "it is said that the router does not answer"


@pytest.mark.parametrize("others", [{}, {"engine-2": Shown("ready")}], ids=["alone", "another one serves"])
def test_an_engine_that_begins_alone_is_announced_at_once_and_any_other_one_warm(
    bench: Bench, others: dict[str, Shown]
) -> None:
    bench.views = {"r": RouterView(0.0, others)}
    watch = bench.watch()
    stepped_until(watch, Stage.SERVING)
    first = [event for event in read_events(bench.folder / "run" / "events.jsonl") if event.kind == "announced"]
    assert ("nobody served" in first[0].told) == (not others)
    assert watch.healing.cold == (not others)
    stepped_until(watch, lambda: not watch.healing.cold)


def test_an_engine_that_hangs_in_its_warm_up_while_it_serves_is_judged_all_the_same(bench: Bench) -> None:
    bench.views = {"r": RouterView(0.0, {})}
    watch = bench.watch({"hung_periods": 3, "hung_unseen_s": 1.0, "hung_computing_s": 1.0})
    stepped_until(watch, Stage.SERVING)
    bench.engine.call(lambda: bench.engine.app.change_faults({"hang": True}))
    stepped_until(watch, Stage.ISOLATED)
    assert "hung" in watch.healing.why


def test_an_isolation_of_a_watchdog_whose_memory_is_gone_is_gone_on_with(bench: Bench) -> None:
    watch = bench.watch()
    bench.views = {"r": RouterView(0.0, {"engine-1": Shown("isolated", "watchdog: hung: 3 requests wait")})}
    watch.step()
    assert (watch.healing.stage, watch.healing.why) == (Stage.ISOLATED, "hung: 3 requests wait")
    stepped_until(watch, Stage.SERVING)
    assert bench.kinds == ["readmitted"]


def test_an_engine_that_was_left_to_a_person_is_left_though_the_memory_is_gone(bench: Bench) -> None:
    watch = bench.watch()
    why = "watchdog: left to a person: 5 restarts did not help"
    bench.views = {"r": RouterView(0.0, {"engine-1": Shown("isolated", why)})}
    for _ in range(20):
        watch.step()
    assert watch.healing.stage is Stage.LEFT
    assert bench.kinds == []


def test_an_engine_that_a_person_readmitted_is_not_closed_again(bench: Bench) -> None:
    bench.state.put("engine-1", Remembered(healing=Healing(stage=Stage.LEFT), condition=Condition.DEAD, since_s=0.0))
    watch = bench.watch()
    bench.views = {watch.door.routers[0].url: RouterView(float("inf"), {"engine-1": Shown("ready")})}
    stepped_until(watch, Stage.SERVING)
    for _ in range(10):
        watch.step()
    assert (watch.healing.stage, watch.door.wish) == (Stage.SERVING, Wish.OPEN)
    assert not watch.door.readmitted


def test_the_hold_of_a_person_at_a_router_keeps_the_watchdog_off(bench: Bench) -> None:
    watch = bench.watch()
    bench.views = {"r": RouterView(0.0, {"engine-1": Shown("draining", "an update")})}
    wait_until(lambda: (watch.step() > 0) and watch.verdict.condition is Condition.READY, "it is ready", 60)
    for _ in range(5):
        watch.step()
    assert watch.healing.stage is Stage.NEW
    assert bench.kinds == []


@pytest.mark.parametrize("stage", [Stage.SERVING, Stage.ISOLATED, Stage.LEFT])
def test_the_next_watchdog_goes_on_where_the_last_one_was(bench: Bench, stage: Stage) -> None:
    healing = Healing(stage=stage, why="hung", incident="i", restarts=(0.0,))
    bench.state.put("engine-1", Remembered(healing=healing, condition=Condition.HUNG, since_s=0.0, why="hung"))
    watch = bench.watch()
    assert watch.healing.stage is stage
    assert watch.verdict.condition is Condition.HUNG
    assert watch.door.wish is (Wish.OPEN if stage is Stage.SERVING else Wish.CLOSED)


def test_nothing_is_concluded_from_a_status_that_is_older_than_the_last_order(bench: Bench) -> None:
    watch = bench.watch()
    watch._ordered_s = 1e12
    bench.status = Status(0.0, {})
    watch.step()
    assert watch.newest is None, "it was not even looked at"


class Reluctant:
    """A restarter that refuses orders at first."""

    no_restart = ""

    def __init__(self, refusals: int) -> None:
        self.left = refusals
        self.orders = 0

    def restart(self, why: str) -> str:
        self.orders += 1
        if self.left:
            self.left -= 1
            raise RestartError("the supervisor is away")
        return "it is being restarted"


def test_orders_that_are_refused_are_told_once_and_cost_no_budget(bench: Bench) -> None:
    watch = bench.watch({"restart_pause_s": 0.0})
    watch.patient = dataclasses.replace(watch.patient, restarter=Reluctant(2))
    stepped_until(watch, Stage.SERVING)
    bench.engine.change_faults(status=500)
    stepped_until(watch, Stage.RESTARTING)
    assert bench.kinds == ["announced", "isolated", "evidence", "restarted", "restart failed"]
    assert (len(watch.healing.restarts), watch.healing.refused) == (1, 0)
    assert watch.verdict.condition is Condition.STARTING, "nothing that the old process did counts"
    bundle = next((bench.folder / "evidence").iterdir())
    assert "it is being restarted" in (bundle / "restart.txt").read_text()


def decaying(monkeypatch: pytest.MonkeyPatch, days: float | None) -> None:
    decay = Decay("host memory", "host memory grows", days)
    monkeypatch.setattr("kveik.watchdog.ageing.decays", lambda *_: [decay])
    monkeypatch.setattr("kveik.watchdog.ageing.VITALS_PERIOD_S", 0.0)
    monkeypatch.setattr("kveik.watchdog.ageing.JUDGED_EVERY", 1)


def roll(folder: Path, code: int = 0) -> tuple[str, ...]:
    script = f"import sys; open({str(folder / 'rolled')!r}, 'a').write(sys.argv[1]); print('done'); sys.exit({code})"
    return (sys.executable, "-c", script, "engine-1")


@pytest.mark.parametrize(("code", "told"), [(0, "ended well"), (1, "the planned restart failed")])
def test_an_engine_whose_memory_will_be_used_up_is_rolled_once_in_good_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int, told: str
) -> None:
    decaying(monkeypatch, 2.0)
    watch = bench.watch({"planned_restart_days": 3.0}, roll=roll(bench.folder, code))
    stepped_until(watch, Stage.SERVING)
    wait_until(lambda: (watch.step() > 0) and "rolled" in bench.kinds, "it was rolled", 60)
    for _ in range(5):
        watch.step()
    assert (bench.folder / "rolled").read_text() == "engine-1"
    assert bench.kinds == ["warning", "announced", "planned restart", "rolled"]
    last = list(read_events(bench.folder / "run" / "events.jsonl"))[-1]
    assert told in last.told


@pytest.mark.parametrize(("allowed_days", "days"), [(0.0, 0.1), (3.0, 5.0), (3.0, None)])
def test_a_decay_alone_is_a_warning(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, allowed_days: float, days: float | None
) -> None:
    decaying(monkeypatch, days)
    watch = bench.watch({"planned_restart_days": allowed_days}, roll=roll(bench.folder))
    stepped_until(watch, Stage.SERVING)
    for _ in range(5):
        watch.step()
    assert bench.kinds == ["warning", "announced"]
    assert "host memory grows" in watch.warnings


def test_what_is_about_to_be_done_is_remembered_before_it_is_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = bench.watch()
    stepped_until(watch, Stage.SERVING)
    remembered: list[Stage] = []

    def note(door: Door, reason: str) -> None:
        found = bench.state.get("engine-1")
        remembered.append(found.healing.stage if found else Stage.NEW)

    monkeypatch.setattr(Door, "close", note)
    bench.engine.change_faults(status=500)
    stepped_until(watch, Stage.ISOLATED)
    assert remembered == [Stage.ISOLATED]
