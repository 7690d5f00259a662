"""What clients notice when parts of a fleet are killed with -9 or stopped, one after another, under load.

A fleet of two real engines with one cache is started with ``kveik up``; four clients ask through its router without
a pause, and know the right answers. Then each part is killed in turn (for the worker: the process that computes,
below the engine's API server), and one engine's core is stopped (SIGSTOP). Nobody helps: the fleet is whole again
when every part runs, both engines get requests and both are attached to the cache. etcd, which is not the fleet's
own, is started again after ten seconds as its service manager would.
"""

import argparse
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.options import Recorder, parser, say
from benchmarks.result import BenchmarkError, Claim, Round
from kveik.bench.clients import SteadyClients, Tally
from kveik.bench.fleet import FleetPlan, RunningFleet
from kveik.bench.service import STEADY_PROMPTS
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.metrics import Metric
from kveik.engine.process import ServerProcess, free_port
from kveik.errors import KveikError
from kveik.verify.prompts import build_prompt

CLIENTS, ANSWER_TOKENS = 4, 24
ETCD_AWAY_S = 10.0
WHOLE_PATIENCE_S = 400.0
BEFORE_S = 5.0
LONG_TOKENS = 600

FAILED, CUT, WRONG = "requests that failed", "streams that had begun and were cut off", "wrong answers"
WHOLE, SLOWEST = "until it is whole again", "slowest answer"
ISOLATED = "stopped core: until it gets no more requests"
UNITS = {FAILED: "requests", CUT: "streams", WRONG: "answers", WHOLE: "s", SLOWEST: "s", ISOLATED: "s"}
PARTS = ("engine", "worker", "agent", "router", "watchdog", "etcd", "stopped core")
BEGUN = ("engine", "worker", "stopped core", "router")
#: A client's connection dies with the router, and a stream with the engine that had begun it; nothing else may fail.
CLAIMS = [
    *(
        Claim(group=CUT, first=part, direction="at most", bound=CLIENTS if part in BEGUN else 0, kind="value")
        for part in PARTS
    ),
    *(
        Claim(group=FAILED, first=part, direction="at most", bound=0, kind="value")
        for part in PARTS
        if part != "router"
    ),
    *(Claim(group=WRONG, first=part, direction="at most", bound=0, kind="value") for part in PARTS),
    Claim(group=ISOLATED, first="stopped core", direction="at most", bound=15, kind="value"),
]


def main() -> None:
    """Measure and write down."""
    options = parser(__doc__ or "", rounds=1)
    options.set_defaults(dtype="float32")
    options.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="only these")
    given = options.parse_args()
    recorder = Recorder("fleet-faults", "What clients notice when parts of a fleet die", given)
    with tempfile.TemporaryDirectory(prefix="kveik-fleet-faults-") as name, Etcd(Path(name)) as etcd:
        parts = [part for part in given.parts if part != "etcd" or etcd.there]
        claims = [claim for claim in CLAIMS if claim.first in parts]
        with (
            recorder.writing(_conditions(given, etcd), claims),
            RunningFleet(_plan(given, Path(name), etcd), say) as fleet,
        ):
            stand = Stand(fleet, etcd)
            for number in range(given.rounds):
                with recorder.rounds(UNITS) as rounds:
                    for part in parts:
                        say(f"round {number + 1}: {part}")
                        stand.measure(part, rounds)


def _plan(given: argparse.Namespace, folder: Path, etcd: "Etcd") -> FleetPlan:
    return FleetPlan(
        model=given.model.resolve(),
        engine_python=given.engine_python,
        folder=folder / "fleet",
        dtype=given.dtype,
        max_model_tokens=2048,
        router={"registry": f"{etcd.url}/kveik"} if etcd.there else {},
    )


def _conditions(given: argparse.Namespace, etcd: "Etcd") -> dict[str, str]:
    return {
        "fleet": f"kveik up: agent, 2 vLLM engines (eager, one core each), router, watchdog; {given.model.name}, "
        f"{given.dtype}; all settings of router and watchdog at their defaults; "
        + ("members in etcd" if etcd.there else "no etcd on this machine"),
        "clients": f"{CLIENTS}, each with one request under way; prompts of 24 and {LONG_TOKENS} tokens, answers of "
        f"{ANSWER_TOKENS}; an answer is wrong when its tokens differ from those of a run before",
        "killed": "SIGKILL of all processes of an engine, of its core alone (worker), of agent, router, watchdog; "
        f"etcd is started again after {ETCD_AWAY_S:g} s; stopped core: SIGSTOP, and nobody continues it",
        "whole": "every part runs, both engines get requests and are attached to the cache",
    }


class Etcd:
    """An etcd for the fleet's members, on loopback. A context manager; ``there`` is false where none is installed."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("etcd")
        self.there = program is not None
        client, peer = free_port(), free_port()
        self.url = f"etcd://127.0.0.1:{client}"
        urls = [f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"]
        command = [program or "etcd", "--data-dir", str(folder / "etcd"), "--name", "m"]
        command += ["--listen-client-urls", urls[0], "--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1]]
        command += ["--initial-advertise-peer-urls", urls[1], "--initial-cluster", f"m={urls[1]}"]
        self._process = ServerProcess("etcd", command, dict(os.environ), folder / "etcd.log")

    def __enter__(self) -> "Etcd":
        if self.there:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def start(self) -> None:
        """Start it on the data it had."""
        self._process.start()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to the fleet. ``whole_again``: what must have happened beside the fleet being whole."""

    inflict: Callable[[], None]
    happened: Callable[[], bool]


class Stand:
    """The running fleet, and what is right."""

    def __init__(self, fleet: RunningFleet, etcd: Etcd) -> None:
        self._fleet = fleet
        self._etcd = etcd
        self._front = EngineClient(fleet.router_url, read_timeout_s=120.0)
        self._model = fleet.plan.model.name
        self._engines = fleet.subjects()
        long_prompts = [build_prompt(self._engines[0].tokenize, "en", LONG_TOKENS, seed).token_ids for seed in range(4)]
        self._prompts = [*STEADY_PROMPTS, *long_prompts]
        self._expected = {prompt: self._answer(prompt) for prompt in self._prompts}

    def measure(self, part: str, rounds: dict[str, Round]) -> None:
        """One fault. Raises :class:`BenchmarkError` when the fleet does not heal."""
        self._wait(self._is_whole, "the fleet to be whole before anything is done")
        fault = self._fault(part)
        with self._clients() as clients:
            time.sleep(BEFORE_S)
            inflicted_s = time.monotonic()
            fault.inflict()
            if part == "stopped core":
                self._wait(lambda: len(self._ready()) < len(self._engines), "the router to leave the engine out")
                rounds[ISOLATED].add(part, time.monotonic() - inflicted_s)
            self._wait(lambda: fault.happened() and self._is_whole(), f"the fleet to heal after {part}")
            whole_s = time.monotonic() - inflicted_s
            time.sleep(BEFORE_S)
        tally = clients.stop()
        _tell(part, whole_s, tally)
        rounds[FAILED].add(part, len(tally.lost))
        rounds[CUT].add(part, len(tally.cuts))
        rounds[WRONG].add(part, len(tally.wrong))
        rounds[WHOLE].add(part, whole_s)
        rounds[SLOWEST].add(part, tally.slowest_s)

    def _clients(self) -> SteadyClients:
        return SteadyClients(
            self._front,
            self._model,
            self._prompts,
            count=CLIENTS,
            answer_tokens=ANSWER_TOKENS,
            expected=self._expected,
        )

    def _answer(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return self._front.complete(CompletionRequest(prompt, ANSWER_TOKENS), self._model).token_ids

    # -- faults ---------------------------------------------------------------------------------

    def _fault(self, part: str) -> Fault:
        if part == "etcd":
            return Fault(self._kill_etcd, lambda: True)
        engine = part in ("engine", "worker", "stopped core")
        name = self._engines[0].name if engine else part
        before = set(self._fleet.processes(name))
        victims = list(_cores(before)) if part in ("worker", "stopped core") else sorted(before)
        if not victims:
            raise BenchmarkError(f"{part}: no process of {name} was found")
        number = signal.SIGSTOP if part == "stopped core" else signal.SIGKILL

        def replaced() -> bool:
            now = set(self._fleet.processes(name))
            at_work = set(_cores(now)) if engine else now  # an engine's server outlives its core for a moment
            return bool(at_work) and not now & set(victims)

        return Fault(lambda: _signal(victims, number), replaced)

    def _kill_etcd(self) -> None:
        self._etcd.kill()
        time.sleep(ETCD_AWAY_S)
        self._etcd.start()

    # -- whole ----------------------------------------------------------------------------------

    def _is_whole(self) -> bool:
        try:
            parts = self._fleet.control.status().processes
            running = all(part.state == "ready" for part in parts)
            return running and self._ready() == {engine.name for engine in self._engines} and self._attached()
        except KveikError:
            return False

    def _ready(self) -> set[str]:
        return self._fleet.service().ready()

    def _attached(self) -> bool:
        return all(engine.client.metrics().total(Metric.KVEIK_ATTACHED) for engine in self._engines)

    @staticmethod
    def _wait(condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + WHOLE_PATIENCE_S
        while not condition():
            if time.monotonic() > until_s:
                raise BenchmarkError(f"waited {WHOLE_PATIENCE_S:g} s for {what}")
            time.sleep(0.1)


def _tell(part: str, whole_s: float, tally: Tally) -> None:
    say(
        f"{part}: whole again after {whole_s:.1f} s; {len(tally.asked)} requests, {len(tally.lost)} failed, "
        f"{len(tally.cuts)} streams cut off, {len(tally.wrong)} wrong, slowest {tally.slowest_s:.1f} s"
    )
    for complaint in [*tally.failures, *tally.wrong][:3]:
        say(f"  {complaint}")


def _cores(pids: Sequence[int] | set[int]) -> Iterator[int]:
    """The processes that compute, below an engine's API server."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if any("VLLM::EngineCore" in word for word in [process.name(), *process.cmdline()]):
                yield pid


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    main()
