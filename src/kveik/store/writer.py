"""Who may be writing into a slot: a process, told apart from later ones with the same pid."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Writer:
    """A process (pid and start time in clock ticks since boot) and one of its connections.

    ``connection`` is a random number that the client chose; 0 where it chose none. A pid of 0
    means that the process cannot be seen from here (another pid namespace).
    """

    pid: int
    started: int
    connection: int = 0

    @classmethod
    def of(cls, pid: int, connection: int = 0) -> "Writer":
        """The process that has this pid now; ``started`` is 0 if there is none."""
        seen = _process(pid)
        return cls(pid, seen.started if seen else 0, connection)

    def may_still_write(self) -> bool:
        """Whether that process still exists with its memory mapped; of a pid of 0 nobody knows: False."""
        seen = _process(self.pid)
        return seen is not None and seen.started == self.started and not seen.dead


@dataclass(frozen=True, slots=True)
class _Process:
    started: int
    dead: bool


def _process(pid: int) -> _Process | None:
    """What ``/proc/PID/stat`` says, or None if there is no such process."""
    if pid <= 0:
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The command name stands in parentheses and may itself contain any of them.
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:  # it ended while we read
        return None
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    # A zombie whose other threads still run keeps its memory; one without them has none.
    return _Process(started, dead=state in "ZX" and threads <= 1)
