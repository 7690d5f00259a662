"""What clients notice when engines and routers fail, and how evenly requests are spread; Kveik and other routers.

Three engines that cost nothing take a given time for each request, so what is measured is what the
router decides. All routers have their usual settings and get the same requests.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.native import CostlessEngine, Counts, Programs, begin_load, report_of, run_load
from benchmarks.options import Recorder, recorder_options, say
from benchmarks.result import BenchmarkError, Claim, Round
from benchmarks.routers import KINDS, KVEIK, RouterKind, RunningRouter, chosen, version_of

ENGINES = 3
RATE, REQUESTS = 60, 480
FAILS_AFTER_S, KILLED_FOR_S = 2.0, 3.0
BACK_PATIENCE_S = 10.0
SERVICE_MS, SLOW_SERVICE_MS, HOT_SERVICE_MS = 20, 100, 200
PROMPT_BYTES, GROUPS, HOT_CLIENTS = 4096, 30, 30

LOST = f"killed engine: lost of {REQUESTS} requests"
BACK = "killed engine: from ready again to its next request"
HUNG_LOST = f"engine that hangs: lost of {REQUESTS} requests"
HUNG_OUT = "engine that hangs: until its last request"
HUNG_SLOWEST = "engine that hangs: slowest answer"
HOT = f"hot prefix, {HOT_CLIENTS} clients: most of one engine to its fair share"
COPIES = f"{GROUPS} groups of prompts: engines that got each"
RESTART = "router restarted: from its start to an answer"
RESTART_COPIES = "router restarted: engines that got each group, before and after together"
UNITS = {
    LOST: "requests",
    BACK: "s",
    HUNG_LOST: "requests",
    HUNG_OUT: "s",
    HUNG_SLOWEST: "s",
    HOT: "times",
    COPIES: "engines",
    RESTART: "s",
    RESTART_COPIES: "engines",
}
CLAIMS = [
    Claim(group=group, first=KVEIK, direction="at most", bound=bound, kind="value")
    for group, bound in (
        (LOST, 0), (BACK, 3), (HUNG_LOST, 0), (HUNG_OUT, 5), (HOT, 1.5), (COPIES, 1.1), (RESTART, 1),
        (RESTART_COPIES, 1.1),
    )
]  # fmt: skip


def main() -> int:
    """Measure and write the result."""
    given = _arguments()
    kinds = [kind for kind in chosen(given.routers, say) if kind.looks_at_cache]
    recorder = Recorder("router-failures", "What becomes of requests when engines and routers fail", given)
    claims = CLAIMS if any(kind.name == KVEIK for kind in kinds) else []
    with tempfile.TemporaryDirectory(prefix="kveik-router-failures-") as name:
        folder = Path(name)
        programs = Programs.compile(folder)
        with recorder.writing(_conditions(kinds), claims):
            for number in range(given.rounds):
                with recorder.rounds(UNITS) as rounds:
                    for kind in kinds:
                        for case in CASES:
                            say(f"round {number + 1}: {kind.name}, {case.__name__.strip('_').replace('_', ' ')}")
                            with Stand(kind, programs, folder) as stand:
                                case(stand, rounds)
    return 0


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engine-python", default=sys.executable, help=argparse.SUPPRESS)
    options.add_argument("--routers", nargs="+", default=[], choices=[kind.name for kind in KINDS], help="only these")
    recorder_options(options, rounds=2)
    return options.parse_args()


def _conditions(kinds: Sequence[RouterKind]) -> dict[str, str]:
    versions = {kind.name: version_of(kind) for kind in kinds}
    return {
        "engines": f"{ENGINES}, {SERVICE_MS} ms a request unless said",
        "killed": f"{RATE} requests/s; SIGKILL of the engine that got most of them after {FAILS_AFTER_S:g} s, started "
        f"again {KILLED_FOR_S:g} s later; who gave it nothing within {BACK_PATIENCE_S:g} s is shown with that",
        "hangs": f"{RATE} requests/s; after {FAILS_AFTER_S:g} s the engine that got most of them takes requests and "
        "answers none, while its /health and /metrics answer; clients give up after 8 s",
        "hot prefix": f"{HOT_CLIENTS} clients, one prompt of 4 KB with unique ends, {HOT_SERVICE_MS} ms a request",
        "groups": f"{GROUPS} different prompts of 4 KB with unique ends at {RATE} requests/s, "
        f"{SLOW_SERVICE_MS} ms a request",
        "restart": "SIGTERM and start of the router between two such loads",
        "others": ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "not installed",
    }


class Stand:
    """A router in front of engines that are processes of their own. A context manager."""

    def __init__(self, kind: RouterKind, programs: Programs, folder: Path) -> None:
        self.name = kind.name
        self._programs = programs
        self.engines = [CostlessEngine(programs, folder) for _ in range(ENGINES)]
        urls = [url for engine in self.engines for url in engine.urls]
        self.router = RunningRouter(kind, urls, folder)
        self._stack = ExitStack()

    def __enter__(self) -> "Stand":
        for engine in self.engines:
            self._stack.enter_context(engine)
        self.set(first_us=SERVICE_MS * 1000)
        self._stack.enter_context(self.router)
        self.set(reset=1)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def set(self, **settings: int) -> None:
        """Change how all engines behave."""
        for engine in self.engines:
            engine.set(**settings)

    def counts(self) -> list[Counts]:
        """What each engine counted."""
        return [count for engine in self.engines for count in engine.counts()]

    def busiest(self) -> CostlessEngine:
        """The engine that has got the most requests: its end hurts the most."""
        return max(self.engines, key=lambda engine: engine.counts()[0].chats)

    def load(self, **options: int) -> int:
        """Send requests; how many failed."""
        return run_load(self._programs, self.router.port, **options).failed

    def begin_load(self, **options: int) -> Callable[[], tuple[int, float]]:
        """Begin to send requests; what is returned waits for the end: how many failed, and the slowest answer."""
        running = begin_load(self._programs, self.router.port, None, **options)

        def wait() -> tuple[int, float]:
            report = report_of(running, 60.0)
            return report.failed, report.slowest_s

        return wait


def _killed(stand: Stand, rounds: dict[str, Round]) -> None:
    wait = stand.begin_load(rate=RATE, requests=REQUESTS, seconds=60)
    time.sleep(FAILS_AFTER_S)
    engine = stand.busiest()
    engine.kill()
    time.sleep(KILLED_FOR_S)
    engine.start()
    engine.set(first_us=SERVICE_MS * 1000)
    ready_s = time.monotonic()
    wait_more = stand.begin_load(rate=RATE, requests=int(RATE * (BACK_PATIENCE_S + 1)), seconds=60)
    while not engine.counts()[0].chats and time.monotonic() - ready_s < BACK_PATIENCE_S:
        time.sleep(0.02)
    rounds[BACK].add(stand.name, time.monotonic() - ready_s)
    rounds[LOST].add(stand.name, wait()[0])
    wait_more()


def _hangs(stand: Stand, rounds: dict[str, Round]) -> None:
    wait = stand.begin_load(rate=RATE, requests=REQUESTS, seconds=60, timeout_ms=8000)
    time.sleep(FAILS_AFTER_S)
    engine = stand.busiest()
    engine.set(hang=1)
    began_s = engine.counts()[0].now_s
    lost, slowest_s = wait()
    rounds[HUNG_LOST].add(stand.name, lost)
    rounds[HUNG_SLOWEST].add(stand.name, slowest_s)
    rounds[HUNG_OUT].add(stand.name, max(0.0, engine.counts()[0].last_chat_s - began_s))


def _hot_prefix(stand: Stand, rounds: dict[str, Round]) -> None:
    stand.set(first_us=HOT_SERVICE_MS * 1000)
    stand.load(connections=HOT_CLIENTS, seconds=6, bytes=PROMPT_BYTES, groups=1)
    chats = [count.chats for count in stand.counts()]
    rounds[HOT].add(stand.name, max(chats) * ENGINES / sum(chats))


def _groups_and_restart(stand: Stand, rounds: dict[str, Round]) -> None:
    stand.set(first_us=SLOW_SERVICE_MS * 1000)
    options = {"rate": RATE, "seconds": 8, "bytes": PROMPT_BYTES, "groups": GROUPS}
    if failed := stand.load(**options):
        raise BenchmarkError(f"{stand.name}: {failed} requests failed with nothing wrong")
    rounds[COPIES].add(stand.name, sum(count.groups for count in stand.counts()) / GROUPS)
    stand.router.stop()
    rounds[RESTART].add(stand.name, stand.router.start())
    stand.load(**options)
    rounds[RESTART_COPIES].add(stand.name, sum(count.groups for count in stand.counts()) / GROUPS)


CASES = (_killed, _hangs, _hot_prefix, _groups_and_restart)


if __name__ == "__main__":
    sys.exit(main())
