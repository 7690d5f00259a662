"""What a router costs: processor time, requests a second on one core, added time, memory; Kveik's and others'.

The router runs on one core, engines and clients on another; both are written in C and cost so little
that the router is what is measured. All routers have their usual settings, stand in front of the same
four engines and get the same requests, one router after the other within each round.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.native import CostlessEngine, LoadReport, Programs, run_load
from benchmarks.options import Recorder, recorder_options, say
from benchmarks.result import BenchmarkError, Claim, Round
from benchmarks.routers import KINDS, KVEIK, KVEIK_COMPILED, RouterKind, RunningRouter, chosen, version_of

ENGINES = 4
DIRECT = "direct"
SMALL_BYTES, LARGE_BYTES, MEDIUM_BYTES, PROMPT_BYTES = 400, 16384, 2048, 4096
CHUNKS, GAP_US = 20, 2000
RATE = 300
FEW_PROMPTS, MANY_PROMPTS = 5600, 200_000
WARM_UP_MS = 300

CPU_SMALL = "CPU a request, 400 B"
CPU_LARGE = "CPU a request, 16 KB"
PER_S_SMALL = "requests a second on a core, 400 B"
PER_S_LARGE = "requests a second on a core, 16 KB"
CPU_CHUNK = "CPU a streamed chunk"
FIRST_BYTE = f"time to first byte at {RATE} requests/s, median"
FIRST_BYTE_P99 = f"time to first byte at {RATE} requests/s, p99"
EXTRA = "requests of the router's own for one of a client"
IDLE = "memory, idle"
AFTER_FEW = f"memory after {FEW_PROMPTS:,} distinct 4 KB prompts"
AFTER_MANY = f"memory after {MANY_PROMPTS:,} distinct 4 KB prompts"
PER_PROMPT = "memory for a distinct 4 KB prompt"
UNITS = {
    CPU_SMALL: "us",
    CPU_LARGE: "us",
    PER_S_SMALL: "req/s",
    PER_S_LARGE: "req/s",
    CPU_CHUNK: "us",
    FIRST_BYTE: "ms",
    FIRST_BYTE_P99: "ms",
    EXTRA: "requests",
    IDLE: "MiB",
    AFTER_FEW: "MiB",
    AFTER_MANY: "MiB",
    PER_PROMPT: "KB",
}

#: What Kveik may cost: its time where it is compiled, its memory as Python runs it. With more prompts than the index
#: holds (20 MiB), memory must end somewhere near its size.
OWN_BOUNDS = (
    Claim(group=CPU_SMALL, first=KVEIK_COMPILED, direction="at most", bound=30, kind="value"),
    Claim(group=CPU_LARGE, first=KVEIK_COMPILED, direction="at most", bound=45, kind="value"),
    Claim(group=PER_S_SMALL, first=KVEIK_COMPILED, direction="at least", bound=15_000, kind="value"),
    Claim(group=PER_S_LARGE, first=KVEIK_COMPILED, direction="at least", bound=15_000, kind="value"),
    Claim(group=CPU_CHUNK, first=KVEIK_COMPILED, direction="at most", bound=10, kind="value"),
    Claim(group=FIRST_BYTE, first=KVEIK_COMPILED, second=DIRECT, direction="at most", bound=0.25, kind="difference"),
    Claim(group=FIRST_BYTE_P99, first=KVEIK_COMPILED, second=DIRECT, direction="at most", bound=0.6, kind="difference"),
    Claim(group=EXTRA, first=KVEIK_COMPILED, direction="at most", bound=0, kind="value"),
    Claim(group=IDLE, first=KVEIK, direction="at most", bound=60, kind="value"),
    Claim(group=PER_PROMPT, first=KVEIK, direction="at most", bound=2, kind="value"),
    Claim(group=AFTER_MANY, first=KVEIK, second=f"{KVEIK} before", direction="at most", bound=64, kind="difference"),
)


def main() -> int:
    """Measure and write the result."""
    given = _arguments()
    kinds = chosen(given.routers, say)
    recorder = Recorder("router-speed", "What a router costs, Kveik's and others'", given)
    with tempfile.TemporaryDirectory(prefix="kveik-router-speed-") as name:
        folder = Path(name)
        programs = Programs.compile(folder)
        with recorder.writing(_conditions(given, kinds), _claims(kinds)):
            for number in range(given.rounds):
                with recorder.rounds(UNITS) as rounds:
                    _measure_direct(programs, folder, given, rounds)
                    for kind in kinds:
                        say(f"round {number + 1}: {kind.name}")
                        _measure(kind, programs, folder, given, rounds)
    return 0


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engine-python", default=sys.executable, help=argparse.SUPPRESS)
    options.add_argument("--routers", nargs="+", default=[], choices=[kind.name for kind in KINDS], help="only these")
    options.add_argument("--router-core", type=int, default=0, help="core of the router")
    options.add_argument("--core", type=int, default=1, help="core of engines and clients")
    options.add_argument("--seconds", type=int, default=2, help="length of each load")
    recorder_options(options, rounds=3)
    return options.parse_args()


def _conditions(given: argparse.Namespace, kinds: Sequence[RouterKind]) -> dict[str, str]:
    versions = {f"{kind.name}": version_of(kind) for kind in kinds}
    return {
        "router": f"one at a time, alone on core {given.router_core}, with its default settings; Kveik's twice: as "
        "Python runs it, and with its request path compiled by mypyc",
        "engines and clients": f"{ENGINES} engines that cost nothing and the clients, all on core {given.core}",
        "requests": f"64 groups of prompts with unique ends; 64 connections, each with one request; {given.seconds} s",
        "streams": f"256 connections, {CHUNKS} chunks of 217 bytes, {GAP_US / 1000:g} ms apart",
        "processor time": "user and system time of the router's processes, divided by the answered requests",
        "time to first byte": f"{RATE} requests/s of 2 KB at fixed times, from when each was due",
        "memory": "resident; growth is counted from a router that has been in use to the one after the prompts",
        "others": ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "not installed",
    }


def _claims(kinds: Sequence[RouterKind]) -> list[Claim]:
    peers = [kind.name for kind in kinds if version_of(kind)]
    ahead = [
        Claim(group=group, first=peer, second=KVEIK_COMPILED, direction="at least", bound=1.0)
        for group in (CPU_SMALL, CPU_LARGE, CPU_CHUNK)
        for peer in peers
    ]
    measured = {kind.name for kind in kinds} | {DIRECT, f"{KVEIK} before"}
    return [claim for claim in (*OWN_BOUNDS, *ahead) if {claim.first, claim.second or claim.first} <= measured]


def _measure_direct(programs: Programs, folder: Path, given: argparse.Namespace, rounds: dict[str, Round]) -> None:
    """The engine without a router: what clients and engines take by themselves."""
    with CostlessEngine(programs, folder, core=given.core) as engine:
        port = engine.ports[0]
        report = run_load(programs, port, given.core, seconds=given.seconds, bytes=SMALL_BYTES)
        rounds[PER_S_SMALL].add(DIRECT, report.answered / report.seconds)
        _add_first_byte(DIRECT, programs, port, given, rounds)


def _measure(
    kind: RouterKind, programs: Programs, folder: Path, given: argparse.Namespace, rounds: dict[str, Round]
) -> None:
    with (
        CostlessEngine(programs, folder, ENGINES, given.core) as engines,
        RunningRouter(kind, engines.urls, folder, given.router_core) as router,
    ):
        rounds[IDLE].add(kind.name, router.memory_bytes() / (1 << 20))
        measured = _Measured(kind, programs, engines, router, given)
        measured.load(milliseconds=WARM_UP_MS, seconds=0, bytes=SMALL_BYTES)
        measured.plain(SMALL_BYTES, rounds[CPU_SMALL], rounds[PER_S_SMALL], rounds[EXTRA])
        measured.plain(LARGE_BYTES, rounds[CPU_LARGE], rounds[PER_S_LARGE])
        measured.streams(rounds[CPU_CHUNK])
        _add_first_byte(kind.name, programs, router.port, given, rounds)
        if kind.looks_at_cache:
            measured.memory(rounds)


class _Measured:
    """One router under load."""

    def __init__(
        self,
        kind: RouterKind,
        programs: Programs,
        engines: CostlessEngine,
        router: RunningRouter,
        given: argparse.Namespace,
    ) -> None:
        self._kind, self._programs, self._engines, self._router, self._given = kind, programs, engines, router, given

    def load(self, **options: int) -> tuple[LoadReport, float]:
        """Load it; the report and the processor time that the router took. Raises :class:`BenchmarkError`."""
        before_s = self._router.cpu_s()
        report = run_load(self._programs, self._router.port, self._given.core, **options)
        if report.failed or not report.answered:
            raise BenchmarkError(f"{self._kind.name}: requests failed: {report}")
        return report, self._router.cpu_s() - before_s

    def plain(self, size: int, cpu: Round, per_s: Round, extra: Round | None = None) -> None:
        """Whole answers, as fast as they come."""
        self._engines.set(reset=1)
        report, cpu_s = self.load(seconds=self._given.seconds, bytes=size)
        cpu.add(self._kind.name, cpu_s / report.answered * 1e6)
        per_s.add(self._kind.name, report.answered / report.seconds)
        if extra is not None:
            counts = self._engines.counts()
            extra.add(self._kind.name, sum(one.extra for one in counts) / sum(one.chats for one in counts))

    def streams(self, cpu: Round) -> None:
        """Many streams at once."""
        self._engines.set(gap_us=GAP_US, chunks=CHUNKS)
        report, cpu_s = self.load(seconds=self._given.seconds, bytes=SMALL_BYTES, stream=1, connections=256)
        cpu.add(self._kind.name, cpu_s / (report.answered * CHUNKS) * 1e6)

    def memory(self, rounds: dict[str, Round]) -> None:
        """Prompts that have nothing in common."""
        name, settled = self._kind.name, 1.0
        options = {"bytes": PROMPT_BYTES, "groups": 99_999_999, "shuffle": 0, "connections": 16, "seconds": 120}
        self.load(**{**options, "groups": 64, "requests": 2000})
        time.sleep(settled)
        before = self._router.memory_bytes()
        self.load(**options, requests=FEW_PROMPTS)
        time.sleep(settled)
        after = self._router.memory_bytes()
        rounds[AFTER_FEW].add(name, after / (1 << 20))
        rounds[PER_PROMPT].add(name, (after - before) / FEW_PROMPTS / 1000)
        if name == KVEIK:
            self.load(**options, requests=MANY_PROMPTS)
            time.sleep(settled)
            rounds[AFTER_MANY].add(f"{name} before", before / (1 << 20))
            rounds[AFTER_MANY].add(name, self._router.memory_bytes() / (1 << 20))


def _add_first_byte(
    name: str, programs: Programs, port: int, given: argparse.Namespace, rounds: dict[str, Round]
) -> None:
    options = {"rate": RATE, "bytes": MEDIUM_BYTES}
    run_load(programs, port, given.core, milliseconds=WARM_UP_MS, seconds=0, **options)
    report = run_load(programs, port, given.core, seconds=2 * given.seconds, **options)
    rounds[FIRST_BYTE].add(name, report.first_byte_p50_ms)
    rounds[FIRST_BYTE_P99].add(name, report.first_byte_p99_ms)


if __name__ == "__main__":
    sys.exit(main())
