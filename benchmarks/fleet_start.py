"""From ``kveik up`` to the first answer through the router, against two engines started by hand side by side.

By hand: two vLLM servers with the same model and options, but without Kveik (no connector, agent, router or
watchdog), started at once; the time until both have answered one tiny request. ``kveik up -d``: the time until a
request to the router is answered while both engines get requests. Each round measures both; who is first changes.
One start before the first round fills file caches and the note of the weights' digest.
"""

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.options import Recorder, parser, say
from benchmarks.result import BenchmarkError, Claim
from kveik.bench.fleet import FleetPlan, RunningFleet
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import free_port
from kveik.verify.testbed import core_of, kv_bytes_per_token, read_model_config

UP, HAND, GROUP = "kveik up", "by hand", "two engines: from start to first answer"
MOST_LONGER = 1.1
ENGINES = 2


def main() -> None:
    """Measure, print and write down."""
    given = parser(__doc__ or "", rounds=3).parse_args()
    recorder = Recorder("fleet-start", "What starting a fleet costs beside its engines", given)
    claim = Claim(group=GROUP, first=UP, second=HAND, direction="at most", bound=MOST_LONGER)
    with tempfile.TemporaryDirectory(prefix="kveik-fleet-start-") as name:
        plan = FleetPlan(
            model=given.model.resolve(),
            engine_python=given.engine_python,
            folder=Path(name),
            dtype=given.dtype,
        )
        with recorder.writing(_conditions(given), [claim]):
            say(f"not counted: {UP} {start_fleet(plan):.1f} s")
            for number in range(given.rounds):
                order = [UP, HAND] if number % 2 == 0 else [HAND, UP]
                with recorder.round(GROUP) as one:
                    for label in order:
                        one.add(label, start_fleet(plan) if label == UP else start_by_hand(plan))


def start_fleet(plan: FleetPlan) -> float:
    """Seconds from ``kveik up -d`` to an answer through its router, with both engines in the pool."""
    began_s = time.monotonic()
    with RunningFleet(plan, say) as fleet:
        service = fleet.service()
        while len(service.ready()) < ENGINES:
            time.sleep(0.05)
        EngineClient(fleet.router_url).complete(CompletionRequest((1, 2, 3), 1), plan.model.name)
        return time.monotonic() - began_s


def start_by_hand(plan: FleetPlan) -> float:
    """Seconds from starting two plain engines to the answer of the later one."""
    token_bytes = kv_bytes_per_token(read_model_config(plan.model), plan.dtype)
    tables = plan.tables(token_bytes, [free_port() for _ in range(ENGINES + 1)], sorted(os.sched_getaffinity(0)))
    began_s = time.monotonic()
    with ExitStack() as stack:
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
        for engine in engines:
            engine.wait_ready()
        taken_s = time.monotonic() - began_s
        if not all(engine.process.running for engine in engines):
            raise BenchmarkError("an engine that was started by hand has ended")
    return taken_s


def _conditions(given: argparse.Namespace) -> dict[str, str]:
    return {
        "engines": f"{ENGINES}, {given.model.name}, {given.dtype}, eager, one core each",
        "rounds": f"{given.rounds}; each side is first in half of them; every start is of a process anew, with files "
        "in the system's cache",
    }


if __name__ == "__main__":
    main()
