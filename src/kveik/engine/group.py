"""Process groups as the kernel shows them: found again after a restart of who started them, and ended whole.

A group has the id of the process that leads it. What its members started belongs to it too, also in groups of their
own. Linux only: this reads ``/proc``.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"
_PYTHON_SEGMENT = re.compile(r"/dev/shm/(?:psm_[0-9a-f]+|sem\.mp-[0-9a-z_]+)")  # noqa: S108 - names, nothing is created
_ENDED = ("Z", "X")


class ProcessId(msgspec.Struct, frozen=True):
    """One process for ever: its number may be given to another one, with its start time it cannot be mixed up.

    ``started_ticks``: clock ticks since the boot ``boot`` of the machine.
    """

    pid: int
    started_ticks: int
    boot: str

    @property
    def alive(self) -> bool:
        """Whether this very process runs."""
        fields = _stat(self.pid)
        return fields is not None and fields[0] not in _ENDED and self == _identity(self.pid, fields)

    @property
    def replaced(self) -> bool:
        """Whether its number belongs to another process now, which nobody here may touch."""
        fields = _stat(self.pid)
        return _boot() != self.boot or (fields is not None and self != _identity(self.pid, fields))


def identity_of(pid: int) -> ProcessId | None:
    """The identity of a process, also of one that ended and was not waited for; None if there is none."""
    fields = _stat(pid)
    return None if fields is None else _identity(pid, fields)


def living_members() -> dict[int, list[int]]:
    """All processes that run, by their group and by the groups of those who started them."""
    running = {pid: (int(fields[1]), int(fields[2])) for pid, fields in _all() if fields[0] not in _ENDED}
    found: dict[int, list[int]] = {}
    for pid in running:
        groups, at = set(), pid
        while at in running:
            at, group = running[at]
            groups.add(group)
        for group in groups:
            found.setdefault(group, []).append(pid)
    return found


def living_members_of(group: int) -> list[int]:
    """The processes of one group that run."""
    return living_members().get(group, [])


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to all processes of a group, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def kill_group(group: int) -> None:
    """SIGKILL for a group, and for what its members started in other groups."""
    members = living_members_of(group)  # once their parents are gone nothing shows whose they were
    signal_group(group, signal.SIGKILL)
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_group_gone(group: int, patience_s: float) -> None:
    """Wait until no process of the group runs any more, so that ports and memory are free."""
    until_s = time.monotonic() + patience_s
    while living_members_of(group) and time.monotonic() < until_s:
        time.sleep(0.02)


def shared_memory_of(group: int) -> set[Path]:
    """Python's own shared-memory segments and semaphores that the group maps.

    vLLM's processes talk through some hundred MiB of them, and the process that would remove them
    is killed with the rest.
    """
    found: set[Path] = set()
    for pid in living_members_of(group):
        with contextlib.suppress(OSError):
            maps = (_PROC / str(pid) / "maps").read_text(encoding="utf8", errors="replace")
            found.update(Path(path) for path in _PYTHON_SEGMENT.findall(maps))
    return found


def _identity(pid: int, fields: list[str]) -> ProcessId:
    return ProcessId(pid, int(fields[19]), _boot())


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _all() -> Iterator[tuple[int, list[str]]]:
    for name in os.listdir(_PROC):
        if name.isdigit() and (fields := _stat(int(name))) is not None:
            yield int(name), fields


def _stat(pid: int) -> list[str] | None:
    """State, parent, group, session and so on: the fields of ``/proc/PID/stat`` behind the name."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
