"""A roll: three engines are restarted one after the other while four clients stream, and what the clients notice.

What: ``kveik up`` starts the fleet that a ``kveik.toml`` describes, four clients ask for streams of 200 tokens
without a pause, and ``kveik roll`` restarts all engines. Each round is one roll of the same fleet. A request failed if
it got no answer, a stream was cut if it did not come to its end mark. The router is asked all the time how many engines
get requests. Times to first token are those of streams that ended before, during and after the roll.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.options import Recorder, parser, say
from benchmarks.result import BenchmarkError, Claim, Round
from kveik.bench.clients import Asked, SteadyClients
from kveik.engine.client import EngineClient
from kveik.engine.process import free_port
from kveik.errors import FleetError
from kveik.fleet.client import FleetClient
from kveik.verify.testbed import read_model_config

ENGINES, CLIENTS, STREAM_TOKENS, PROMPT_TOKENS = 3, 4, 200, 64
READY_MIN = 2
#: Ids below it are special tokens and single bytes in the usual vocabularies.
FIRST_PLAIN_ID = 300
#: Streams before and after the roll.
AROUND = 2 * CLIENTS
PATIENCE_S = 1800.0

FAILED = f"roll of {ENGINES} engines: requests that failed"
CUT = f"roll of {ENGINES} engines: streams that were cut"
POOL = f"roll of {ENGINES} engines: fewest that got requests"
SECONDS = f"roll of {ENGINES} engines: time"
STEPS = "roll of one engine: time of a step"
TTFT = "time to first token"
UNITS = {FAILED: "requests", CUT: "streams", POOL: "engines", SECONDS: "s", STEPS: "s", TTFT: "s"}
ROLL = "kveik roll"
CLAIMS = [
    Claim(group=FAILED, first=ROLL, direction="at most", bound=0, kind="value"),
    Claim(group=CUT, first=ROLL, direction="at most", bound=0, kind="value"),
    Claim(group=POOL, first=ROLL, direction="at least", bound=READY_MIN, kind="value"),
]


def main() -> int:
    """Measure, print and write down."""
    options = parser(__doc__ or "", rounds=1)
    options.add_argument("--simulated", action="store_true", help="simulated engines, to try the benchmark itself out")
    given = options.parse_args()
    # A plain SIGTERM would leave the fleet behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by signal {number}"))
    recorder = Recorder("fleet-roll", f"A roll of {ENGINES} engines under {CLIENTS} clients, {given.model.name}", given)
    vocabulary = 2000 if given.simulated else int(read_model_config(given.model)["vocab_size"])
    conditions = {
        "fleet": f"{ENGINES} engines with one cache, agent, router and watchdog, as kveik up starts them",
        "model": f"{given.model.name}, {given.dtype}, eager",
        "clients": f"{CLIENTS}, each with one stream of {STREAM_TOKENS} tokens under way, prompts of {PROMPT_TOKENS}",
        "cores": f"{len(os.sched_getaffinity(0))} for engines, clients and router together",
        "roll": f"ready_min {READY_MIN}; the same version again, so nothing is proved on the way",
    }
    with (
        recorder.writing(conditions, CLAIMS),
        tempfile.TemporaryDirectory(prefix="kveik-fleet-roll-") as folder,
        _running(_described(given, Path(folder))) as fleet,
    ):
        for number in range(given.rounds):
            say(f"round {number + 1} of {given.rounds}")
            with recorder.rounds(UNITS) as rounds:
                course = _measure(fleet, rounds, vocabulary)
                if course.troubled:
                    say(f"logs are kept in {shutil.copytree(fleet.logs, f'{fleet.folder}-logs', dirs_exist_ok=True)}")
    if given.plot:
        _draw(course, given.plot)
    return 0


def _described(given: argparse.Namespace, folder: Path) -> "Fleet":
    if given.simulated:
        engine = 'simulated = true\nshared_cache = false\narguments = "--decode-s=0.005"\n'
    else:
        engine = (
            f'python = "{given.engine_python}"\nmodel = "{given.model.resolve()}"\ndtype = "{given.dtype}"\n'
            f'mode = "eager"\nmax_model_tokens = 2048\nkv_cache_bytes = {150 << 20}\n'
        )
    return Fleet(folder, engine)


@dataclass
class Fleet:
    """A fleet by its description; commands of Kveik's act on it. ``engine``: the lines of ``[engine]``."""

    folder: Path
    engine: str
    port: int = field(default_factory=free_port)
    ports: tuple[int, ...] = field(default_factory=lambda: tuple(free_port() for _ in range(ENGINES)))

    @property
    def config(self) -> Path:
        """Its file."""
        return self.folder / "kveik.toml"

    @property
    def logs(self) -> Path:
        """What its parts wrote."""
        return self.folder / "state" / "local" / "logs"

    @property
    def url(self) -> str:
        """Its router."""
        return f"http://127.0.0.1:{self.port}"

    def describe(self) -> None:
        """Write the file."""
        cores = sorted(os.sched_getaffinity(0))
        launched = "".join(
            f'[[launch]]\nname = "engine-{number + 1}"\nport = {port}\ncores = "{cores[number % len(cores)]}"\n'
            for number, port in enumerate(self.ports)
        )
        self.config.write_text(
            f'[fleet]\nname = "roll-{self.port}"\nstate_folder = "{self.folder / "state"}"\nready_min = {READY_MIN}\n'
            f"drain_s = 600\n"
            f"[engine]\n{self.engine}"
            f"[agent]\narena_bytes = {256 << 20}\n[router]\nport = {self.port}\n{launched}",
            encoding="utf8",
        )

    def kveik(self, *arguments: str) -> list[str]:
        """Run a command; its lines. Raises BenchmarkError with what it said if it does not end well."""
        command = [sys.executable, "-m", "kveik.cli.main", *arguments, "--config", str(self.config)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        if done.returncode != 0:
            raise BenchmarkError(f"kveik {arguments[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.splitlines()

    def serving(self) -> int:
        """How many engines get requests."""
        return sum(engine["state"] == "ready" for engine in FleetClient(self.url).traffic()["engines"])


@contextmanager
def _running(fleet: Fleet) -> Iterator[Fleet]:
    fleet.describe()
    try:
        fleet.kveik("up", "-d")
        say(f"{ENGINES} engines are up")
        yield fleet
    finally:
        fleet.kveik("down", "--now", "--forget")


class PoolWatch:
    """Counts the engines that get requests, as often as it can: ``(monotonic seconds, engines)``. A context manager."""

    def __init__(self, fleet: Fleet) -> None:
        self.counts: list[tuple[float, int]] = []
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PoolWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            try:
                self.counts.append((time.monotonic(), self._fleet.serving()))
            except FleetError as error:
                say(f"the router does not answer: {error}")


@dataclass(frozen=True)
class Course:
    """What happened, for a picture: times are monotonic seconds."""

    began_s: float
    over_s: float
    asked: Sequence[Asked]
    counts: Sequence[tuple[float, int]]

    @property
    def troubled(self) -> bool:
        """Whether something happened that should not."""
        return any(one.failure for one in self.asked) or min(count for _, count in self.counts) < READY_MIN


def _prompts(vocabulary: int) -> list[tuple[int, ...]]:
    """Prompts that differ from the first token on, of ids that the model has and that are no special ones."""
    plain = min(vocabulary, 2000) - FIRST_PLAIN_ID
    starts = range(0, 10 * plain, plain // 10 * 11)
    return [tuple(FIRST_PLAIN_ID + (start + n) % plain for n in range(PROMPT_TOKENS)) for start in starts]


def _measure(fleet: Fleet, rounds: dict[str, Round], vocabulary: int) -> Course:
    """One roll under load."""
    client = EngineClient(fleet.url, read_timeout_s=PATIENCE_S)
    prompts = _prompts(vocabulary)
    with SteadyClients(client, client.model().name, prompts, count=CLIENTS, answer_tokens=STREAM_TOKENS) as clients:
        with PoolWatch(fleet) as watch:
            _wait_for(clients, AROUND)
            began_s = time.monotonic()
            lines = fleet.kveik("roll", "--json")
            over_s = time.monotonic()
            _wait_for(clients, len(clients.tally.asked) + AROUND)
        tally = clients.stop()
    _note_steps(lines, rounds[STEPS])
    for failure in tally.failures:
        say(f"failed: {failure}")
    rounds[FAILED].add(ROLL, len(tally.lost))
    rounds[CUT].add(ROLL, len(tally.cuts))
    rounds[POOL].add(ROLL, min(count for _, count in watch.counts))
    rounds[SECONDS].add(ROLL, over_s - began_s)
    for one in tally.asked:
        if not one.failure:
            rounds[TTFT].add(_when(one, began_s, over_s), one.ttft_s)
    say(f"{len(tally.asked)} streams, {len(tally.failures)} of them failed, in {over_s - began_s:.0f} s of roll")
    return Course(began_s, over_s, tally.asked, watch.counts)


def _draw(course: Course, path: Path) -> None:
    """Each stream's time to first token, and the engines that got requests, over the time of the roll."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and only pictures need it

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (upper, lower) = plt.subplots(
        2, figsize=(8, 5), sharex=True, layout="constrained", height_ratios=(2, 1)
    )  # fmt: skip
    good = [one for one in course.asked if not one.failure]
    failed = [one for one in course.asked if one.failure]
    upper.plot([one.sent_s - course.began_s for one in good], [one.ttft_s for one in good], "o", ms=3, label="streams")
    if failed:
        upper.plot([one.over_s - course.began_s for one in failed], [0.0] * len(failed), "rx", label="failed or cut")
    upper.set_ylabel("TTFT, s")
    upper.set_ylim(bottom=0)
    lower.step([at_s - course.began_s for at_s, _ in course.counts], [n for _, n in course.counts], where="post")
    lower.axhline(READY_MIN, linestyle="--", linewidth=1, color="grey", label="ready_min")
    lower.set_ylim(0, ENGINES + 0.5)
    lower.set_ylabel("engines in the pool")
    lower.set_xlabel("seconds since the roll began")
    for axes in (upper, lower):
        axes.axvspan(0, course.over_s - course.began_s, alpha=0.1, label="the roll")
        axes.grid(visible=True, alpha=0.25)
    upper.legend(loc="upper right", fontsize=8)
    lower.legend(loc="lower right", fontsize=8)
    upper.set_title(
        f"{ENGINES} engines are restarted under {CLIENTS} clients: {len(failed)} of {len(course.asked)} failed",
        fontsize=10,
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _when(one: Asked, began_s: float, over_s: float) -> str:
    if one.over_s < began_s:
        return "before"
    return "during" if one.sent_s < over_s else "after"


def _note_steps(lines: list[str], steps: Round) -> None:
    """The time of each step of each engine, as the roll tells it."""
    for line in lines:
        told = json.loads(line)
        if told.get("state") == "done" and "stage" in told:
            steps.add(told["stage"], told["seconds"])


def _wait_for(clients: SteadyClients, count: int) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while len(clients.tally.asked) < count:
        if time.monotonic() > until_s:
            raise BenchmarkError(f"{len(clients.tally.asked)} of {count} streams within {PATIENCE_S:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
