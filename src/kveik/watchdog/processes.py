"""An engine's processes on this machine: which of them compute, how much, and whether one is missing."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from kveik.watchdog.verdict import ProcessFacts

#: Titles that vLLM gives to the processes that compute (vllm/v1/engine/core.py, executor/multiproc_executor.py).
_COMPUTES = re.compile(r"VLLM::(EngineCore|Worker)")
_RANK = re.compile(r"VLLM::EngineCore_DP(\d+)")


@dataclass(frozen=True, slots=True)
class _Seen:
    """One process in one look; ``ran_s`` is its processor time."""

    pid: int
    parent: int
    title: str
    status: str
    ran_s: float
    resident_bytes: int


class ProcessReader:
    """Looks at one engine's processes again and again; a new leader is a new engine."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, leader: int) -> None:
        self._leader = leader
        self._before: dict[int, tuple[float, float]] = {}  # seconds that a process ran, and waited to
        self._parts: dict[int, str] = {}  # titled processes that have been seen
        self._ran_s = self._waited_s = 0.0
        self._per_rank_s: dict[str, float] = {}

    def read(self, pids: Sequence[int]) -> ProcessFacts:
        """What the processes ``pids`` show, the leader of their group first. None at all: the engine is gone."""
        if not pids:
            return ProcessFacts(missing="it has no process")
        if pids[0] != self._leader:
            self._begin(pids[0])
        seen = {pid: found for pid in dict.fromkeys((*pids, *self._parts)) if (found := _look_at(pid)) is not None}
        missing = self._missing(seen)
        self._parts |= {pid: one.title for pid, one in seen.items() if _COMPUTES.match(one.title)}
        self._count(seen)
        return ProcessFacts(
            processor_s=self._ran_s,
            starved_s=self._waited_s,
            per_rank_s=dict(self._per_rank_s) if len(self._per_rank_s) > 1 else {},
            stopped=sum(one.status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP) for one in seen.values()),
            missing=missing,
            resident_bytes=sum(one.resident_bytes for one in seen.values()),
        )

    def _missing(self, seen: dict[int, _Seen]) -> str:
        if self._leader not in seen:
            return f"its process {self._leader} is gone"
        gone = [f"{title} (process {pid})" for pid, title in self._parts.items() if pid not in seen]
        return f"{', '.join(gone)} is gone" if gone else ""

    def _count(self, seen: dict[int, _Seen]) -> None:
        """Add what the processes that compute used since the last look."""
        now = {pid: (seen[pid].ran_s, _waited_s(pid)) for pid in _computing(seen)}
        for pid, (ran_s, waited_s) in now.items():
            before_ran_s, before_waited_s = self._before.get(pid, (ran_s, waited_s))
            used_s = max(0.0, ran_s - before_ran_s)
            self._ran_s += used_s
            self._waited_s += max(0.0, waited_s - before_waited_s)
            if rank := _rank_of(pid, seen):
                self._per_rank_s[rank] = self._per_rank_s.get(rank, 0.0) + used_s
        self._before = now


def computes(pid: int) -> bool:
    """Whether a process bears a title of vLLM's that computes."""
    seen = _look_at(pid)
    return seen is not None and _COMPUTES.match(seen.title) is not None


def _computing(seen: dict[int, _Seen]) -> Iterable[int]:
    """Engine cores, workers and what they started; all processes where none has such a title."""
    named = [pid for pid in seen if any(_COMPUTES.match(seen[one].title) for one in _line(pid, seen))]
    return named or seen


def _line(pid: int, seen: dict[int, _Seen]) -> list[int]:
    """A process and those above it, among the engine's."""
    line: list[int] = []
    while pid in seen and pid not in line:
        line.append(pid)
        pid = seen[pid].parent
    return line


def _rank_of(pid: int, seen: dict[int, _Seen]) -> str:
    """The data-parallel rank that a process belongs to; empty if it is in no group."""
    return next((match[1] for one in _line(pid, seen) if (match := _RANK.match(seen[one].title))), "")


def _look_at(pid: int) -> _Seen | None:
    """One living process; None for one that is gone or a zombie."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, status = process.cpu_times(), process.status()
            if status == psutil.STATUS_ZOMBIE:
                return None
            title = next(iter(process.cmdline()), "")
            resident = process.memory_info().rss
            parent = process.ppid()
    except psutil.AccessDenied:
        return _Seen(pid, 0, "", "", 0.0, 0)
    except psutil.Error:
        return None
    ran_s = times.user + times.system + times.children_user + times.children_system
    return _Seen(pid, parent, title, status, ran_s, resident)


def _waited_s(pid: int) -> float:
    """Seconds for which a process's threads were ready to run and had no processor (Linux; else 0)."""
    waited_ns = 0
    try:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            waited_ns += int(file.read_text().split()[1])
    except (OSError, ValueError, IndexError):  # a thread ended meanwhile, or a kernel without it
        pass
    return waited_ns / 1e9
