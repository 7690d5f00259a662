"""How well routers choose engines: what engines had cached, and how long first tokens took, on simulated engines.

All routers get the same requests at the same moments, one router after the other within each round, in
front of the same eight engines with empty caches; the workloads run side by side. The engines are
`kveik sim-engine`: their prefix caches are real and limited, their time is a model, so what is measured is
the choices and not the machine.
"""

import argparse
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.machine import ROOT
from benchmarks.native import wait_ready
from benchmarks.open_loop import Played, play
from benchmarks.options import Recorder, recorder_options, say
from benchmarks.result import Claim, Round
from benchmarks.routers import KINDS, KVEIK, POLICIES, RouterKind, RunningRouter, chosen, version_of
from benchmarks.workloads import MODEL, Planned, Scale, SharedPrefix, read_trace, schedule_of
from kveik.engine.process import ServerProcess, free_port

ENGINES = 8
BLOCK_TOKENS = 16
PATIENCE_S = 60.0
#: llm-d's rule: the prompts fill this part of all caches together, so several times one of them.
FILLED = 0.73
START_S, CONTROL_S = 20.0, 5.0
COMPARED = (KVEIK, *(kind.name for kind in POLICIES), "vllm-router", "sglang-router", "smg")

CACHED, P95, MEDIAN = "cached share of prompt tokens", "time to first token, p95", "time to first token, median"
SHED, FAILED = "requests shed", "requests failed"
UNITS = {CACHED: "share", P95: "s", MEDIAN: "s", SHED: "requests", FAILED: "requests"}


@dataclass(frozen=True)
class EngineSize:
    """What each engine can do: prompt tokens a second, blocks in its cache."""

    prefill_tokens_s: float
    cache_blocks: int
    decode_s: float = 0.02
    capacity: int = 64


@dataclass(frozen=True)
class Workload:
    """Requests, and the engines that they go to. ``about`` says in words what they are."""

    name: str
    about: str
    size: EngineSize
    schedule: Sequence[Planned]

    def group(self, what: str) -> str:
        """The name of a result."""
        return f"{self.name}, {ENGINES} simulated engines: {what}"


def main() -> int:
    """Measure and write the result."""
    given = _arguments()
    kinds = chosen(given.routers or COMPARED, say, (*KINDS, *POLICIES))
    workloads = [one for one in _workloads(given) if not given.workloads or one.name in given.workloads]
    recorder = Recorder("router-quality", f"How well routers choose between {ENGINES} simulated engines", given)
    with tempfile.TemporaryDirectory(prefix="kveik-router-quality-") as name:
        folder = Path(name)
        with recorder.writing(_conditions(workloads, kinds), _claims(workloads, kinds)):
            for number in range(given.rounds):
                say(f"round {number + 1}")
                units = {workload.group(what): unit for workload in workloads for what, unit in UNITS.items()}
                with recorder.rounds(units) as rounds, ThreadPoolExecutor(len(workloads)) as side_by_side:
                    measuring = [side_by_side.submit(_measure, kinds, one, folder, rounds) for one in workloads]
                    for one in measuring:
                        one.result()
    return 0


def _measure(kinds: Sequence[RouterKind], workload: Workload, folder: Path, rounds: dict[str, Round]) -> None:
    """All routers under one workload, one after the other."""
    with Fleet(workload.size, folder) as fleet:
        for kind in kinds:
            say(f"{workload.name}: {kind.name}")
            _add(kind.name, workload, _played(kind, workload, fleet, folder), rounds)


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engine-python", default=sys.executable, help=argparse.SUPPRESS)
    options.add_argument("--routers", nargs="+", default=[], choices=COMPARED, help="only these")
    options.add_argument("--workloads", nargs="+", default=[], help="only these")
    options.add_argument(
        "--traces",
        type=Path,
        default=ROOT / ".kveik" / "mooncake-traces",
        help="folder with conversation_trace.jsonl and synthetic_trace.jsonl (github.com/kvcache-ai/Mooncake, "
        "FAST25-release/traces); without them only the shared prefixes are measured",
    )
    options.add_argument("--seconds", type=float, default=60.0, help="length of each load")
    options.add_argument("--seed", type=int, default=1, help="of the moments and the order of shared prefixes")
    recorder_options(options, rounds=1)
    return options.parse_args()


def _workloads(given: argparse.Namespace) -> list[Workload]:
    workloads = [_shared_prefixes(given)]
    for name, a_minute, size in (
        ("conversation", 2000, EngineSize(6000, 8192)),
        ("synthetic", 3993, EngineSize(10_000, 8192)),
    ):
        scale = Scale(lengths=8, requests=round(a_minute * given.seconds / 60), seconds=given.seconds)
        path = given.traces / f"{name}_trace.jsonl"
        if not path.exists():
            say(f"the {name} trace is left out: {path} does not exist")
            continue
        about = (
            f"the first {scale.requests} requests of Mooncake's {name} trace within {scale.seconds:g} s, "
            f"lengths divided by {scale.lengths}"
        )
        schedule = schedule_of(read_trace(path, scale.requests), scale)
        workloads.append(Workload(f"{name} trace", about, size, schedule))
    return workloads


def _shared_prefixes(given: argparse.Namespace) -> Workload:
    shared = SharedPrefix()
    tokens = shared.distinct_tokens() + shared.tenants * shared.users * shared.answer_tokens
    about = (
        f"{shared.tenants} tenants with {shared.context_tokens} tokens of context each, {shared.users} users of each "
        f"with a question of {shared.question_tokens} tokens, asked again and again at random, {shared.first_per_s:g} "
        f"requests/s at first and {shared.last_per_s:g} at the end: all of it fills {FILLED:.0%} of all caches"
    )
    size = EngineSize(800, round(tokens / FILLED / ENGINES / BLOCK_TOKENS))
    return Workload("shared prefixes", about, size, shared.schedule(given.seconds, given.seed))


def _conditions(workloads: Sequence[Workload], kinds: Sequence[RouterKind]) -> dict[str, str]:
    versions = {kind.name: version_of(kind) for kind in kinds}
    sizes = (
        f"for {one.name} {one.size.prefill_tokens_s:g} prompt tokens/s and a cache of "
        f"{one.size.cache_blocks * BLOCK_TOKENS:,} tokens each"
        for one in workloads
    )
    return {
        **{one.name: one.about for one in workloads},
        "engines": f"{ENGINES} simulated engines (`kveik sim-engine`), empty at the start of each load: "
        + "; ".join(sizes),
        "routers": "one at a time in each workload, the workloads side by side; default settings; "
        "Kveik alone is its cache-aware policy",
        "time to first token": "from the moment at which a request was due to its first token; one that got none "
        f"counts as {PATIENCE_S:g} s",
        "shed": "answered with another status than 200; failed: no whole answer",
        "others": ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "not installed",
    }


def _claims(workloads: Sequence[Workload], kinds: Sequence[RouterKind]) -> list[Claim]:
    names = [kind.name for kind in kinds]
    if KVEIK not in names:
        return []
    others = [name for name in names if name != KVEIK]
    return [
        claim
        for one in workloads
        for claim in (
            *(Claim(group=one.group(CACHED), first=KVEIK, second=x, direction="at least", bound=1) for x in others),
            *(Claim(group=one.group(P95), first=KVEIK, second=x, direction="at most", bound=1) for x in others),
            Claim(group=one.group(SHED), first=KVEIK, direction="at most", bound=0, kind="value"),
            Claim(group=one.group(FAILED), first=KVEIK, direction="at most", bound=0, kind="value"),
        )
    ]


class Fleet:
    """The simulated engines, each a process. A context manager."""

    def __init__(self, size: EngineSize, folder: Path) -> None:
        self._stack = ExitStack()
        self._engines: list[ServerProcess] = []
        self.urls: list[str] = []
        for _ in range(ENGINES):
            port = free_port()
            self.urls.append(f"http://127.0.0.1:{port}")
            options = {
                "port": port,
                "model": MODEL,
                "block-tokens": BLOCK_TOKENS,
                "cache-blocks": size.cache_blocks,
                "prefill-tokens-s": size.prefill_tokens_s,
                "decode-s": size.decode_s,
                "capacity": size.capacity,
                "answer-tokens": 8,  # for the short requests that routers are tried with
            }
            flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
            command = [sys.executable, "-m", "kveik.cli.main", "sim-engine", *flags]
            self._engines.append(ServerProcess("simulated engine", command, {}, folder / f"engine-{port}.log"))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for engine in self._engines:
                stack.enter_context(engine).start()
            for engine, url in zip(self._engines, self.urls, strict=True):
                wait_ready(engine, lambda url=url: _answers(f"{url}/health"), START_S)  # type: ignore[misc]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def forget(self) -> None:
        """Empty all caches."""
        for url in self.urls:
            asked = urllib.request.Request(f"{url}/reset_prefix_cache", b"", method="POST")
            urllib.request.urlopen(asked, timeout=CONTROL_S).read()

    def processor_s(self) -> float:
        """Processor time that all of them have used."""
        return sum(engine.processor_s() for engine in self._engines)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=CONTROL_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _played(kind: RouterKind, workload: Workload, fleet: Fleet, folder: Path) -> Played:
    before_s = fleet.processor_s()
    with RunningRouter(kind, fleet.urls, folder) as router:
        fleet.forget()
        played = play(router.port, workload.schedule, PATIENCE_S)
        say(f"{kind.name}: processor time {router.cpu_s():.1f} s, of engines {fleet.processor_s() - before_s:.1f} s")
    return played


def _add(name: str, workload: Workload, played: Played, rounds: dict[str, Round]) -> None:
    values = {
        CACHED: played.cached_share,
        P95: played.first_token_s(0.95),
        MEDIAN: played.first_token_s(0.5),
        SHED: float(played.shed),
        FAILED: float(played.failed),
    }
    for what, value in values.items():
        rounds[workload.group(what)].add(name, value, played.cached_tokens)
    say(f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in values.items()))


if __name__ == "__main__":
    sys.exit(main())
