"""The agent's side of the process that hosts Mooncake's library: start it, ask it, end it, start it anew.

One thread owns the process for its whole life: it starts it (the kernel kills the process with
this thread), reads its answers, and replaces it when :func:`why_replace` says so. A process that is
gone can write into no buffer any more, so to end it is also how a hung transfer is ended.
"""

import contextlib
import itertools
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import StoreError
from kveik.records import Listener, StateRecord, ignore
from kveik.store.mooncake_codes import moves_late

#: A process that says nothing for so long after its start is given up. Without a master, the library tries for 90 s.
START_S = 100.0
#: A process whose library may move bytes late is replaced, but not before it is so old.
LEAST_AGE_S = 5.0
#: Bytes moved late a minute after a call had ended; after so long none do.
LATE_S = 150.0
#: Pauses between starts that failed.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
_LOOK_MS = 100
#: Longest wait for a process to give its segment back.
_CLOSE_S = 3.0
#: Longest wait for the last words of one that has ended.
_WORDS_S = 1.0
#: Operations that move bytes from or to buffers.
_TRANSFERS = frozenset({"get", "put"})

_log = logging.getLogger(__name__)


def why_replace(*, now_s: float, started_s: float, oldest_call_s: float, late_since_s: float, hang_s: float) -> str:
    """Why a process should be ended and another one started; empty while it should go on.

    ``oldest_call_s`` is when its oldest call that still runs began, ``late_since_s`` when a call ended that
    may move bytes late; infinite if there is none.
    """
    if now_s - oldest_call_s > hang_s:
        return f"a call has been running for more than {hang_s:g} s"
    if now_s >= late_since_s and now_s - started_s >= LEAST_AGE_S:
        return "a transfer failed, and its bytes may come late"
    return ""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What a process needs to know. ``setup`` are the arguments of the library's ``setup``.

    With ``talkative``, the library's log goes where the agent's goes.
    """

    setup: tuple[str | int, ...]
    threads: int
    replicas: int = 1
    soft_pin: bool = False
    talkative: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


class Call:
    """One request: ``codes`` holds a number for each key, once it is done; None if its process ended before."""

    def __init__(self, op: str, begun_s: float, run: "_Run") -> None:
        self.op = op
        self.begun_s = begun_s
        self.codes: list[int] | None = None
        self._done = threading.Event()
        self._run = run
        self._late_until_s = float("-inf")

    def __repr__(self) -> str:
        return f"Call({self.op}, {self.codes if self._done.is_set() else 'running'})"

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; false if it has not come after ``timeout_s``."""
        return self._done.wait(timeout_s)

    def may_touch_buffers(self) -> bool:
        """Whether bytes of this transfer may still move."""
        if self._run.gone.is_set():
            return False
        return not self._done.is_set() or self._run.clock.monotonic() < self._late_until_s

    def end(self, codes: list[int] | None) -> None:
        """Note how it ended."""
        if codes is not None and self.op in _TRANSFERS and moves_late(codes):
            self._late_until_s = self._run.clock.monotonic() + LATE_S
        self.codes = codes
        self._done.set()


class _LastWords:
    """Reads what a process writes to standard error, so that it never waits for us, and keeps the last lines."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._lines: deque[str] = deque(maxlen=3)
        self._reader = threading.Thread(target=self._read, args=(stream,), name="kveik-mooncake-words", daemon=True)
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line.decode("utf8", "replace").rstrip())
                _log.debug("%s", self._lines[-1])

    def text(self) -> str:
        """The last lines, of a process that has ended."""
        self._reader.join(_WORDS_S)
        return "; ".join(self._lines)


class _Run:
    """One process, from its start to its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket, clock: Clock) -> None:
        self.process = process
        self.channel = channel
        self.clock = clock
        self.words = _LastWords(process.stderr) if process.stderr is not None else None
        self.started_s = clock.monotonic()
        self.ready = False
        self.segment = ""
        self.late_since_s = float("inf")
        self.gone = threading.Event()
        self.calls: dict[int, Call] = {}
        self.sending = threading.Lock()

    def oldest_call_s(self) -> float:
        return min((call.begun_s for call in list(self.calls.values())), default=float("inf"))

    def answered(self, message: Mapping[str, Any]) -> None:
        call = self.calls.pop(message["id"], None)
        if call is not None:
            call.end(message["codes"])
            if call.may_touch_buffers():
                self.late_since_s = min(self.late_since_s, self.clock.monotonic())


class MooncakeClient:
    """Keeps one process with the library running until :meth:`close`.

    ``open_memory`` gives file descriptors and sizes of the memory that transfers may use, opened anew for
    each process. ``part`` is the name in records. Raises nothing: :meth:`wait_ready` tells.
    """

    def __init__(
        self,
        plan: HostPlan,
        open_memory: Callable[[], Sequence[tuple[int, int]]],
        *,
        part: str,
        hang_s: float = float("inf"),
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._plan = plan
        self._open_memory = open_memory
        self._part = part
        self._hang_s = hang_s
        self._listener = listener
        self._clock = clock
        self._numbers = itertools.count(1)
        self._condition = threading.Condition()
        self._run: _Run | None = None
        self._master = f"the Mooncake master {plan.setup[-1]}"
        self._why_not = f"{self._master} has not answered yet"
        self._useless = False
        self._closing = threading.Event()
        self._owner = threading.Thread(target=self._own, name=f"kveik-{part}", daemon=True)
        self._owner.start()

    def __repr__(self) -> str:
        return f"MooncakeClient({self._part}, {'ready' if self.ready else self._why_not})"

    @property
    def ready(self) -> bool:
        """Whether requests can be made now."""
        run = self._run
        return run is not None and run.ready

    @property
    def why_not(self) -> str:
        """Why it is not ready, in words."""
        return self._why_not

    @property
    def segment(self) -> str:
        """The name of this process's segment; empty while it is not ready."""
        run = self._run
        return run.segment if run is not None and run.ready else ""

    @property
    def pid(self) -> int:
        """The process; 0 while there is none."""
        run = self._run
        return run.process.pid if run is not None else 0

    def wait_ready(self, timeout_s: float) -> None:
        """Wait for the store to be joined.

        Raises :class:`StoreError` after ``timeout_s``, or at once where the library cannot be used at all.
        """
        with self._condition:
            self._condition.wait_for(lambda: self.ready or self._useless, timeout_s)
            if not self.ready:
                raise StoreError(self._why_not)

    def ask(self, op: str, **fields: Any) -> Call | None:
        """Make a request; None while no process is ready for it."""
        run = self._run
        if run is None or not run.ready:
            return None
        number = next(self._numbers)
        call = Call(op, self._clock.monotonic(), run)
        run.calls[number] = call
        line = json.dumps({"id": number, "op": op, **fields}).encode() + b"\n"
        try:
            with run.sending:
                run.channel.sendall(line)
        except OSError:  # its owner sees the end as well, and ends all calls
            pass
        if run.gone.is_set():
            call.end(None)
        return call

    def close(self) -> None:
        """End the process. What is asked afterwards, or still runs, ends without codes."""
        self._closing.set()
        self._owner.join()

    def _own(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            began_s = self._clock.monotonic()
            why, was_ready = self._live()
            with self._condition:
                self._why_not = why
                self._condition.notify_all()
            if was_ready:
                self._listener(StateRecord(self._part, "ready", "starting", why))
            if was_ready and self._clock.monotonic() - began_s >= LEAST_AGE_S:
                pause_s = FIRST_PAUSE_S
            else:  # one that crashes again and again must not take a processor with it
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _live(self) -> tuple[str, bool]:
        """One process's life: why it ended, and whether it was ever of use."""
        try:
            run = self._start()
        except OSError as error:  # no memory, no process, no file: there may be one the next time
            return f"the process of Mooncake's library cannot be started: {error}", False
        try:
            return self._serve(run), run.ready
        finally:
            self._end(run)

    def _start(self) -> _Run:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as failing, contextlib.ExitStack() as closing:
            failing.callback(ours.close)
            closing.callback(theirs.close)
            memory = self._open_memory()
            for fd, _ in memory:
                closing.callback(os.close, fd)
            plan = {
                "parent": os.getpid(),
                "socket": theirs.fileno(),
                "memory": list(memory),
                "setup": list(self._plan.setup),
                "threads": self._plan.threads,
                "replicas": self._plan.replicas,
                "soft_pin": self._plan.soft_pin,
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "kveik.store.mooncake_host", json.dumps(plan)],
                env={**os.environ, **self._plan.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if self._plan.talkative else subprocess.PIPE,
                pass_fds=[theirs.fileno(), *(fd for fd, _ in memory)],
                process_group=0,  # a Ctrl-C on the agent's terminal is not for it; a session would be scheduled apart
            )
            failing.pop_all()
        run = _Run(process, ours, self._clock)
        self._run = run
        return run

    def _serve(self, run: _Run) -> str:
        """Read answers until the process ends or should; why it was."""
        rest = b""
        arrivals = select.poll()
        arrivals.register(run.channel, select.POLLIN)
        while not self._closing.is_set():
            if arrivals.poll(_LOOK_MS):
                received = _received(run.channel)
                if not received:
                    return f"the process of Mooncake's library ended ({_ending(run)})"
                *lines, rest = (rest + received).split(b"\n")
                for line in lines:
                    if why := self._heard(run, json.loads(line)):
                        return why
            if why := self._why_replace(run):
                return why
        return "closed"

    def _heard(self, run: _Run, message: Mapping[str, Any]) -> str:
        """Take one message; why the process is of no use, if it says so."""
        if "id" in message:
            run.answered(message)
        elif message["ready"]:
            with self._condition:
                run.segment, run.ready = message["segment"], True
                self._condition.notify_all()
            self._listener(StateRecord(self._part, "starting", "ready", f"joined the store as {run.segment}"))
        else:
            self._useless = message["kind"] == "import"
            whose = "Mooncake's library is of no use here" if self._useless else f"{self._master} cannot be joined"
            return f"{whose}: {message['why']}"
        return ""

    def _why_replace(self, run: _Run) -> str:
        now_s = self._clock.monotonic()
        if not run.ready:
            late = now_s - run.started_s > START_S
            return f"{self._master} did not answer within {START_S:g} s" if late else ""
        return why_replace(
            now_s=now_s,
            started_s=run.started_s,
            oldest_call_s=run.oldest_call_s(),
            late_since_s=run.late_since_s,
            hang_s=self._hang_s,
        )

    def _end(self, run: _Run) -> None:
        """Kill the process and end its calls: from here on it touches no buffer."""
        self._run = None
        if self._closing.is_set() and run.ready:  # one that lends memory gives it back in order
            with contextlib.suppress(OSError):
                run.channel.shutdown(socket.SHUT_WR)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(_CLOSE_S)
        run.process.kill()
        run.process.wait()
        run.gone.set()
        run.channel.close()
        for number in list(run.calls):
            if (call := run.calls.pop(number, None)) is not None:
                call.end(None)


def _received(channel: socket.socket) -> bytes:
    try:
        return channel.recv(1 << 16)
    except OSError:  # reset: the other end was killed with our bytes unread
        return b""


def _ending(run: _Run) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(1.0)
    code = run.process.returncode
    how = "still running" if code is None else f"signal {-code}" if code < 0 else f"code {code}"
    words = run.words.text() if run.words is not None and code is not None else ""
    return f"{how}: {words}" if words else how
