"""From ``kveik up`` to the first answer through the router, against two engines started by hand side by side.

By hand: two vLLM servers with the same model and options, but without Kveik (no connector, agent, router or
watchdog), started at once; the time until one, and until both, have answered a tiny request. ``kveik up -d``: the
time until a request to the router is answered, and until one is while both engines get requests. Each round measures
both; who is first changes. One start before the first round fills file caches and the note of the weights' digest.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.options import Recorder, parser, say
from benchmarks.result import BenchmarkError, Claim
from kveik.bench.fleet import FleetPlan, RunningFleet
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from kveik.errors import EngineError
from kveik.verify.testbed import core_of, kv_bytes_per_token, read_model_config

UP, HAND = "kveik up", "by hand"
FIRST, ALL = "two engines: from start to the first answer", "two engines: from start until both answer"
MOST_LONGER = 1.1
ENGINES = 2
_POLL_S = 0.05
BOOT_S = 600.0


@dataclass(frozen=True, slots=True)
class Started:
    """Seconds from the command to the first answer, and until all engines answer users."""

    first_s: float
    all_s: float


def main() -> None:
    """Measure, print and write down."""
    given = parser(__doc__ or "", rounds=3).parse_args()
    recorder = Recorder("fleet-start", "What starting a fleet costs beside its engines", given)
    claims = [
        Claim(group=group, first=UP, second=HAND, direction="at most", bound=MOST_LONGER) for group in (FIRST, ALL)
    ]
    with tempfile.TemporaryDirectory(prefix="kveik-fleet-start-") as name:
        plan = FleetPlan(
            model=given.model.resolve(),
            engine_python=given.engine_python,
            folder=Path(name),
            dtype=given.dtype,
        )
        with recorder.writing(_conditions(given), claims):
            say(f"not counted: {UP} {start_fleet(plan).all_s:.1f} s")
            for number in range(given.rounds):
                order = [UP, HAND] if number % 2 == 0 else [HAND, UP]
                took = {label: start_fleet(plan) if label == UP else start_by_hand(plan) for label in order}
                for group, of in ((FIRST, lambda one: one.first_s), (ALL, lambda one: one.all_s)):
                    with recorder.round(group) as one:
                        for label in order:
                            one.add(label, of(took[label]))


def start_fleet(plan: FleetPlan) -> Started:
    """Start a fleet with ``kveik up -d``, and ask its router all the while."""
    began_s = time.monotonic()
    fleet = RunningFleet(plan, say)
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        first = threads.submit(_first_answer_s, lambda: fleet.router_url, plan.model.name)
        stack.enter_context(fleet)
        service = fleet.service()
        while len(service.ready()) < ENGINES:
            time.sleep(_POLL_S)
        EngineClient(fleet.router_url).complete(CompletionRequest((1, 2, 3), 1), plan.model.name)
        all_s = time.monotonic() - began_s
        return Started(first.result() - began_s, all_s)


def start_by_hand(plan: FleetPlan) -> Started:
    """Start two plain engines at once."""
    token_bytes = kv_bytes_per_token(read_model_config(plan.model), plan.dtype)
    tables = plan.tables(token_bytes, [free_port() for _ in range(ENGINES + 1)], sorted(os.sched_getaffinity(0)))
    began_s = time.monotonic()
    with ThreadPoolExecutor(ENGINES) as threads, ExitStack() as stack:
        engines = []
        for number, table in enumerate(tables["launch"]):
            spec = EngineSpec(
                name=table["name"],
                python=plan.engine_python,
                model=plan.model,
                port=table["port"],
                dtype=plan.dtype,
                max_model_tokens=plan.max_model_tokens,
                kv_cache_bytes=tables["engine"]["kv_cache_bytes"],
                cores=core_of(number, sorted(os.sched_getaffinity(0))),
            )
            engines.append(stack.enter_context(Engine(spec, os.environ, plan.folder)))
            engines[-1].start()
        urls = [engine.spec.url for engine in engines]
        answers = [threads.submit(_first_answer_s, lambda url=url: url, plan.model.name) for url in urls]
        answered_s = sorted(answer.result() - began_s for answer in answers)
        if not all(engine.process.running for engine in engines):
            raise BenchmarkError("an engine that was started by hand has ended")
    return Started(answered_s[0], answered_s[-1])


def _first_answer_s(url: Callable[[], str], model: str) -> float:
    """Ask whoever is at ``url``, as soon as that is known, until there is an answer; the monotonic time of it."""
    until_s = time.monotonic() + BOOT_S
    while time.monotonic() < until_s:
        try:
            if target := url():
                EngineClient(target).complete(CompletionRequest((1, 2, 3), 1), model)
                return time.monotonic()
        except EngineError:
            pass  # nobody is there yet
        time.sleep(_POLL_S)
    raise BenchmarkError(f"no answer within {BOOT_S:g} s")


def _conditions(given: argparse.Namespace) -> dict[str, str]:
    return {
        "engines": f"{ENGINES}, {given.model.name}, {given.dtype}, eager, one core each",
        "rounds": f"{given.rounds}; each side is first in half of them; every start is of a process anew, with files "
        "in the system's cache",
    }


if __name__ == "__main__":
    main()
