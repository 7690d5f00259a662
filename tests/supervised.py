"""Small parts for tests of the supervisor: real processes that start at once, end on cue, and can be looked at."""

import sys
from pathlib import Path

from kveik.engine.group import living_members_of
from kveik.records import Record, StateRecord
from kveik.supervise.part import Part, Readiness, Variant

RUNS = "import time; time.sleep(600)"
#: A leader with a child, which writes both process ids to the file that it is given.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
#: Accepts connections at the Unix socket that it is given.
LISTENS = """
import socket, sys, time
with socket.socket(socket.AF_UNIX) as sock:
    sock.bind(sys.argv[1])
    sock.listen()
    time.sleep(600)
"""
#: Maps a shared-memory segment of Python's, whose remover is killed with it, and says its name.
SEGMENT = """
import time
from multiprocessing import resource_tracker, shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(segment._name, "shared_memory")
print(segment.name, flush=True)
time.sleep(600)
"""
FAILS = "import sys; print('ValueError: no room for the KV cache', flush=True); sys.exit(3)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def script(code: str, *arguments: str, mode: str = "") -> Variant:
    """A way to start a part: this Python code."""
    return Variant((sys.executable, "-c", code, *arguments), mode)


def a_part(folder: Path, *variants: Variant, name: str = "part", kind: str = "router", **fields: object) -> Part:
    """A part that counts as ready as soon as it runs, unless ``readiness`` says otherwise."""
    words = {"readiness": Readiness("running"), "stop_grace_s": 10.0, **fields}
    return Part(name=name, kind=kind, variants=variants or (script(RUNS),), log=folder / f"{name}.log", **words)  # type: ignore[arg-type]


def never(folder: Path) -> Readiness:
    """Of a part that is never ready."""
    return Readiness("socket", str(folder / "nobody-listens"))


def runs(pid: int) -> bool:
    """Whether a process, not a dead one that nobody waited for, has this number."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def group_is_empty(pid: int) -> bool:
    """Whether nothing is left of a process group."""
    return not living_members_of(pid)


class Changes:
    """A listener that remembers changes of state."""

    def __init__(self) -> None:
        self.records: list[StateRecord] = []

    def __call__(self, record: Record) -> None:
        assert isinstance(record, StateRecord)
        self.records.append(record)

    def states_of(self, part: str) -> list[str]:
        """The states that a part went through."""
        return [record.after for record in self.records if record.part == part]
