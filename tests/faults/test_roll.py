"""Rolls over simulated engines behind a real router: no request is lost, and what goes wrong ends the roll."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kveik.bench.clients import SteadyClients
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.errors import EngineError
from kveik.fleet.client import FleetClient
from kveik.launch.pool import Routers
from kveik.launch.roll import Roll
from kveik.launch.roll_order import Interruption, Outcome, Proof, Question, RollOptions, Told
from kveik.launch.roll_plan import Rolled, Stage, plan_roll
from kveik.launch.roll_state import RollNotebook
from tests.agents import wait_until
from tests.routers import RouterProcess, SimProcess

CLIENTS, STREAM_TOKENS = 4, 200
PROMPTS = [tuple(range(start, start + 40)) for start in range(1, 60, 7)]


@dataclass
class ProcessKeeper:
    """Keeps simulated engines as a supervisor would; ``version`` is what they are described by now."""

    processes: dict[str, SimProcess]
    version: str = "v1"
    described: dict[str, str] = field(default_factory=dict)
    holds: dict[str, str] = field(default_factory=dict)
    restarted: list[str] = field(default_factory=list)

    def held(self, engine: Rolled) -> str:
        return self.holds.get(engine.name, "")

    def digest(self, engine: Rolled) -> str:
        return self.described.get(engine.name, "v1")

    def hold(self, engine: Rolled, why: str) -> None:
        self.holds[engine.name] = why

    def release(self, engine: Rolled) -> None:
        self.holds.pop(engine.name, None)

    def restart(self, engine: Rolled, why: str) -> None:
        process = self.processes[engine.name]
        process.kill()
        self.restarted.append(engine.name)
        self.described[engine.name] = self.version
        process.start()

    def serves(self, engine: Rolled) -> bool:
        return True


class Fleet:
    """Engines, a router, and what is needed to roll them."""

    def __init__(self, folder: Path, engines: Sequence[SimProcess], router: RouterProcess) -> None:
        self.folder, self.router = folder, router
        self.names = [engine.url.removeprefix("http://") for engine in engines]
        self.keeper = ProcessKeeper(dict(zip(self.names, engines, strict=True)))
        self.routers = Routers([FleetClient(router.url)])
        self.client = EngineClient(router.url, read_timeout_s=60.0)
        self.proofs: list[tuple[str, str]] = []
        self.told: list[Told] = []
        self.interruption = Interruption()
        self.meanwhile: Callable[[Told], None] = lambda _: None

    def tell(self, told: Told) -> None:
        self.told.append(told)
        self.meanwhile(told)

    @property
    def engines(self) -> list[Rolled]:
        return [Rolled(name, f"http://{name}", settings=self.keeper.version, start_s=60.0) for name in self.names]

    def taking(self) -> list[str]:
        return [name for name, engine in self.routers.look().items() if engine.takes]

    def roll(self, *, holds: bool = True, asked: Sequence[str] = (), **given: Any) -> Outcome:
        """A whole roll as the command does it. ``holds``: what a proof says."""

        def prove(asked: Question) -> Proof:
            self.proofs.append((asked.new, asked.other))
            return Proof(holds, "all legs hold" if holds else "2 of 6 legs do NOT hold")

        options = RollOptions(**{"ready_min": 2, "drain_s": 30.0, "config": self.keeper.version, **given})
        with RollNotebook(self.folder / "state" / "roll.json") as notebook:
            plan = plan_roll(self.engines, asked, options.config, notebook.read())
            roll = Roll(self.routers, lambda _: self.keeper, prove, options, notebook, self.tell, self.interruption)
            return roll.run(plan)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[SimProcess], RouterProcess]]:
    folder = tmp_path_factory.mktemp("roll")
    with ExitStack() as stack:
        engines = [stack.enter_context(SimProcess(folder, decode_s=0.002)) for _ in range(3)]
        router = stack.enter_context(RouterProcess(folder, slow_start_s=0.0))
        router.join(*engines)
        yield folder, engines, router


@pytest.fixture
def fleet(running: tuple[Path, list[SimProcess], RouterProcess], tmp_path: Path) -> Iterator[Fleet]:
    """The same processes for all tests; each leaves all of them serving."""
    _, engines, router = running
    made = Fleet(tmp_path, engines, router)
    yield made
    for engine in made.routers.look().values():
        if engine.state in ("draining", "isolated"):
            made.routers.hold(engine.name, "readmit", "")
    wait_until(lambda: len(made.taking()) == 3, "all engines serve again", 30)


class Watcher:
    """Counts the engines in the pool as often as it can."""

    def __init__(self, fleet: Fleet) -> None:
        self.counts: list[int] = []
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            self.counts.append(len(self._fleet.taking()))


@contextmanager
def under_load(fleet: Fleet) -> Iterator[SteadyClients]:
    """Four clients with streams of 200 tokens; each has had answers before and after."""
    with SteadyClients(fleet.client, "simulated", PROMPTS, count=CLIENTS, answer_tokens=STREAM_TOKENS) as clients:
        wait_until(lambda: len(clients.tally.asked) >= 2 * CLIENTS, "the clients are served", 60)
        yield clients
        served = len(clients.tally.asked)
        wait_until(lambda: len(clients.tally.asked) >= served + 2 * CLIENTS, "and are served on", 60)


def test_three_engines_are_restarted_under_load_without_a_lost_or_a_cut_request(fleet: Fleet) -> None:
    with under_load(fleet) as clients, Watcher(fleet) as watcher:
        outcome = fleet.roll()
    tally = clients.stop()
    assert outcome.rolled == tuple(fleet.names), outcome
    assert fleet.keeper.restarted == fleet.names, "each once, in order"
    assert (tally.failures, tally.wrong) == ([], [])
    assert min(watcher.counts) == 2, "never fewer than two, and one was out"
    assert fleet.keeper.holds == {}
    assert fleet.proofs == [], "nothing is new"
    assert not (fleet.folder / "state" / "roll.json").exists(), "nothing is left to be done"


def test_the_first_engine_of_a_new_version_is_proved_and_the_others_are_not(fleet: Fleet) -> None:
    fleet.keeper.version = "v2"
    outcome = fleet.roll()
    assert outcome.rolled == tuple(fleet.names)
    ((new, other),) = fleet.proofs
    assert new == f"http://{fleet.names[0]}"
    assert other in [f"http://{name}" for name in fleet.names[1:]]


def test_a_proof_that_fails_ends_the_roll_before_anything_else_is_touched(fleet: Fleet) -> None:
    fleet.keeper.version = "v2"
    with under_load(fleet) as clients, Watcher(fleet) as watcher:
        outcome = fleet.roll(holds=False)
    assert clients.stop().failures == []
    first, *others = fleet.names
    assert (outcome.failed, outcome.stage, outcome.rolled) == (first, Stage.VERIFY, ())
    assert outcome.left == tuple(fleet.names)
    assert fleet.keeper.restarted == [first]
    assert sorted(fleet.taking()) == sorted(others), "the rest serves"
    assert min(watcher.counts) == 2
    assert first in fleet.keeper.holds, "nobody puts it back by himself"
    told = "\n".join(outcome.advice)
    for words in ("do NOT hold", "gets no requests", f"kveik roll {first}", f"kveik readmit {first}", others[0]):
        assert words in told


def test_a_second_roll_goes_on_with_the_engine_that_was_in_hand_and_proves_it(fleet: Fleet) -> None:
    fleet.keeper.version = "v2"
    assert fleet.roll(holds=False).failed == fleet.names[0]
    fleet.keeper.restarted.clear()
    outcome = fleet.roll(holds=True)
    assert outcome.rolled == tuple(fleet.names)
    assert fleet.keeper.restarted == fleet.names
    assert len(fleet.proofs) == 2, "once when it failed, and once when it did not"
    assert len(fleet.taking()) == 3


def test_a_roll_that_was_interrupted_puts_the_engine_back_and_goes_on_the_next_time(fleet: Fleet) -> None:
    def interrupt_at_second(told: Told) -> None:
        if told.engine == fleet.names[1] and told.stage is Stage.HOLD and told.state == "done":
            fleet.interruption.ask()

    fleet.meanwhile = interrupt_at_second
    outcome = fleet.roll()
    fleet.interruption, fleet.meanwhile = Interruption(), lambda _: None
    assert outcome.interrupted
    assert outcome.rolled == (fleet.names[0],)
    assert fleet.keeper.restarted == [fleet.names[0]]
    assert fleet.keeper.holds == {}
    wait_until(lambda: len(fleet.taking()) == 3, "all serve")
    assert fleet.roll().rolled == tuple(fleet.names)
    assert fleet.keeper.restarted == fleet.names, "the first one is not restarted twice"


def test_a_stream_beyond_the_limit_ends_with_an_error_and_never_as_if_it_were_complete(fleet: Fleet) -> None:
    ends: list[str] = []

    def long_stream() -> None:
        try:
            fleet.client.complete(CompletionRequest((1, 2, 3), 30_000), "simulated")
            ends.append("complete")
        except EngineError as error:
            ends.append(str(error))

    thread = threading.Thread(target=long_stream)
    thread.start()
    wait_until(lambda: any(engine.in_flight for engine in fleet.routers.look().values()), "it is under way")
    (name,) = (name for name, engine in fleet.routers.look().items() if engine.in_flight)
    outcome = fleet.roll(asked=[name], drain_s=0.3)
    thread.join(60)
    assert outcome.rolled == (name,)
    assert any("1 requests are left after 0.3 s" in told.told for told in fleet.told)
    (end,) = ends
    assert "error in the stream" in end


def test_a_router_that_restarts_in_the_middle_of_a_roll_is_waited_for(fleet: Fleet) -> None:
    starts: list[threading.Thread] = []

    def restart_router(told: Told) -> None:
        if told.engine == fleet.names[0] and told.stage in (Stage.DRAIN, Stage.RESTART) and told.state == "began":
            fleet.router.kill()
            starts.append(threading.Thread(target=fleet.router.start))
            starts[-1].start()

    fleet.meanwhile = restart_router
    outcome = fleet.roll(asked=fleet.names[:2])
    for start in starts:
        start.join(30)
    assert len(starts) == 2
    assert outcome.rolled == tuple(fleet.names[:2]), outcome.advice
    wait_until(lambda: len(fleet.taking()) == 3, "all serve again", 30)


def test_nothing_is_taken_out_where_too_few_would_be_left(fleet: Fleet) -> None:
    fleet.routers.hold(fleet.names[2], "isolate", "hung")
    wait_until(lambda: len(fleet.taking()) == 2, "one is out")
    outcome = fleet.roll(ready_s=0.2)
    assert (outcome.failed, outcome.stage) == (fleet.names[0], Stage.CHECK)
    assert fleet.keeper.restarted == []
    assert "1 engines would get requests, expected at least 2" in outcome.advice[0]
    assert f"{fleet.names[2]} is isolated (hung)" in outcome.advice[0]
    assert f"{fleet.names[0]} is as it was before" in outcome.advice


def test_an_engine_that_drains_is_put_back_if_another_one_is_lost_meanwhile(fleet: Fleet) -> None:
    first, _, lost = fleet.names

    def lose_one(told: Told) -> None:
        if told.stage is Stage.DRAIN and told.state == "began":
            fleet.routers.hold(lost, "isolate", "hung")

    fleet.meanwhile = lose_one
    outcome = fleet.roll(asked=[first])
    assert (outcome.failed, outcome.stage) == (first, Stage.DRAIN)
    assert f"{lost} is isolated (hung)" in outcome.advice[0]
    assert (fleet.keeper.restarted, fleet.keeper.holds) == ([], {})
    wait_until(lambda: first in fleet.taking(), "it serves again", 30)


def test_an_engine_that_a_person_holds_is_left_alone_unless_it_is_named(fleet: Fleet) -> None:
    held = fleet.names[0]
    fleet.keeper.holds[held] = "drained by a person"
    outcome = fleet.roll()
    assert (outcome.failed, outcome.stage) == (held, Stage.CHECK)
    assert fleet.keeper.holds == {held: "drained by a person"}
    assert fleet.roll(asked=[held]).rolled == (held,)


def test_each_step_is_told_with_its_time(fleet: Fleet) -> None:
    name = fleet.names[1]
    began_s = time.monotonic()
    outcome = fleet.roll(asked=[name])
    assert [(told.stage, told.state) for told in fleet.told if told.state != "note"] == [
        (stage, state) for stage in Stage for state in ("began", "done")
    ]
    assert all(0 <= told.seconds <= time.monotonic() - began_s for told in fleet.told)
    assert outcome.seconds <= time.monotonic() - began_s
