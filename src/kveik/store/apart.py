"""A store in processes of its own, for libraries that may stop or kill the process that calls them.

openYuanrong's client holds the interpreter's lock while it waits for its worker: in the agent, one hung
worker would stop all engines' lookups. So the agent hands each call to a process that has nothing else to
do and maps the same arena; payloads do not pass through the agent. A process that does not answer is
killed, after which it certainly touches no buffer any more.
"""

import math
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.records import Listener, StateRecord, ignore
from kveik.store.apart_wire import (
    INLINE,
    Answer,
    Call,
    Opening,
    decode_answer,
    decode_opened,
    encode,
    place_in,
    unpacked,
)
from kveik.store.base import BlockResult, Capabilities, Status, StoreStats, failed
from kveik.store.tier_threads import TierThreads

#: After a process could not be started no other is for so long.
START_PAUSE_S = 1.0
_END_S = 2.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the processes run: ``maker``, as ``module:function``, gives the store when called with ``options``.

    The store's calls must not touch a buffer after they returned. ``open_s`` is the longest wait for a process
    and its store, ``patience_s`` how long after a call's deadline a process may be silent before it is killed.
    """

    maker: str
    options: Mapping[str, str | int | float | bool]
    open_s: float
    patience_s: float


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Memory that the processes map too; ``open_file`` gives a new descriptor of its file."""

    view: memoryview
    open_file: Callable[[], int]


class ApartStore:
    """The store of the recipe, in ``processes`` processes, each with one call at a time.

    Raises :class:`~kveik.errors.StoreError`, with its words, when the first process cannot open the store.
    Buffers within ``memory`` are filled and read by the processes; others are sent to and fro.
    """

    def __init__(
        self,
        name: str,
        capabilities: Capabilities,
        recipe: Recipe,
        *,
        processes: int = 1,
        memory: SharedMemory | None = None,
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name = name
        self._capabilities = capabilities
        self._recipe = recipe
        self._limit = processes
        self._memory = memory
        self._listener = listener
        self._condition = threading.Condition()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._starting = 0
        self._trouble, self._start_at_s = "", 0.0
        self._closed = False
        self._clock = clock
        # The kernel ends a process with the thread that started it: this one lives until we are closed.
        self._starter = TierThreads(f"{name}-start", 1, clock)
        first = self._starter.submit(partial(_Process, recipe, memory))
        try:
            self._idle.append(first.result())
        except StoreError:
            self._starter.close()
            raise
        with self._condition:
            self._start_missing()

    def __repr__(self) -> str:
        return f"ApartStore({self._name!r}, {len(self._idle)} idle and {len(self._busy)} busy processes)"

    @property
    def name(self) -> str:
        """Short name used in metrics and messages."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What the store in the processes promises."""
        return self._capabilities

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Lookup; nothing is there if no process can say so."""
        if not keys or deadline.passed:
            return [False] * len(keys)
        answer = self._ask(Call("lookup", _plain(keys), deadline.remaining_s), deadline)
        return [False] * len(keys) if isinstance(answer, BlockResult) else answer.present

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Get; FAILED ``unavailable`` or ``timeout`` for all keys if the process ended or had to be ended."""
        places = [self._place(buffer) for buffer in buffers]
        answer = self._transfer("get", keys, places, [], deadline)
        if isinstance(answer, BlockResult):
            return [answer] * len(keys)
        frames = iter(answer.frames)
        results = unpacked(answer.results)
        for (offset, _), buffer, result in zip(places, buffers, results, strict=True):
            if offset == INLINE and result.status is Status.HIT:
                buffer[: result.bytes] = next(frames)
        return results

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Put; as ``get`` where the process ended: whether the blocks were stored is then not known."""
        places = [self._place(sealed) for sealed in frames]
        sent = [bytes(sealed) for (offset, _), sealed in zip(places, frames, strict=True) if offset == INLINE]
        answer = self._transfer("put", keys, places, sent, deadline)
        return [answer] * len(keys) if isinstance(answer, BlockResult) else unpacked(answer.results)

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Delete; as ``put`` where the process ended."""
        if not keys:
            return []
        answer = self._ask(Call("delete", _plain(keys)), Deadline.after(self._recipe.patience_s))
        return [answer] * len(keys) if isinstance(answer, BlockResult) else unpacked(answer.results)

    def stats(self) -> StoreStats:
        """No sizes: the processes are not asked."""
        return StoreStats(0, 0, 0)

    def close(self) -> None:
        """End the processes; those in the middle of a call are killed, so that no buffer is touched any more."""
        with self._condition:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
            self._condition.notify_all()
        for process in busy:
            process.kill()
        for process in idle:
            process.leave()
        self._starter.close()

    def _place(self, buffer: memoryview) -> tuple[int, int]:
        return (INLINE, len(buffer)) if self._memory is None else place_in(self._memory.view, buffer)

    def _transfer(
        self,
        operation: str,
        keys: Sequence[BlockKey],
        places: list[tuple[int, int]],
        frames: list[bytes],
        deadline: Deadline,
    ) -> Answer | BlockResult:
        if not keys:
            return Answer()
        if deadline.passed and not self._closed:
            return failed("timeout")
        return self._ask(Call(operation, _plain(keys), deadline.remaining_s, places, frames), deadline)

    def _ask(self, call: Call, deadline: Deadline) -> Answer | BlockResult:
        """The answer of a process, or why there is none; when this returns, no process touches a buffer."""
        process = self._taken(deadline)
        if isinstance(process, BlockResult):
            return process
        try:
            answer = process.ask(encode(call), deadline.remaining_s + self._recipe.patience_s)
        except TimeoutError:
            return self._lost(process, "timeout", f"{call.operation}: no answer in time, so its process is ended")
        except (OSError, EOFError):
            return self._lost(process, "unavailable", f"{call.operation}: its process ended {process.how_it_ended()}")
        self._give_back(process)
        return decode_answer(answer)

    def _taken(self, deadline: Deadline) -> "_Process | BlockResult":
        """A process that does nothing, or why there is none by then."""
        with self._condition:
            self._forget_dead()
            self._start_missing()
            self._condition.wait_for(
                lambda: self._closed or self._idle or not (self._busy or self._starting), deadline.remaining_s
            )
            if self._closed:
                return failed("closed")
            if self._idle:
                process = self._idle.pop()
                self._busy.add(process)
                return process
            if self._busy or self._starting:
                return failed("timeout", "none of the tier's processes was free")
            return failed("unavailable", self._trouble)

    def _forget_dead(self) -> None:
        """Drop idle processes that somebody else ended. Called with the lock held."""
        dead = [process for process in self._idle if not process.alive]
        for process in dead:
            self._idle.remove(process)
            process.end()

    def _start_missing(self) -> None:
        """Have missing processes started in the background, unless one just failed to. Called with the lock held."""
        if self._closed or self._clock.monotonic() < self._start_at_s:
            return
        for _ in range(self._limit - len(self._idle) - len(self._busy) - self._starting):
            self._starting += 1
            self._starter.submit(partial(_Process, self._recipe, self._memory)).add_done_callback(self._arrived)

    def _arrived(self, job: "Future[_Process]") -> None:
        """A process has started, or not. Runs on the thread that started it."""
        process = None if job.cancelled() or job.exception() is not None else job.result()
        with self._condition:
            self._starting -= 1
            closed = self._closed
            if process is not None and not closed:
                self._idle.append(process)
            elif not closed:
                self._trouble = str(job.exception())
                self._start_at_s = self._clock.monotonic() + START_PAUSE_S
            self._condition.notify_all()
        if process is not None and closed:
            process.leave()

    def _give_back(self, process: "_Process") -> None:
        with self._condition:
            self._busy.discard(process)
            closed = self._closed
            if not closed:
                self._idle.append(process)
                self._condition.notify_all()
        if closed:
            process.leave()

    def _lost(self, process: "_Process", reason: str, why: str) -> BlockResult:
        process.end()
        with self._condition:
            self._busy.discard(process)
            closed = self._closed
            self._start_missing()
            self._condition.notify_all()
        if closed:
            return failed("closed")
        self._listener(StateRecord(f"{self._name}.process", "running", "ended", why))
        return failed(reason, why)


class _Process:
    """One process with its channel. The constructor waits until it has opened its store."""

    def __init__(self, recipe: Recipe, memory: SharedMemory | None) -> None:
        ours, theirs = socket.socketpair()
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # within a message: a stopped process holds nobody
            ours.setsockopt(socket.SOL_SOCKET, direction, struct.pack("@ll", math.ceil(recipe.patience_s), 0))
        descriptor = memory.open_file() if memory is not None else -1
        passed = [theirs.fileno(), descriptor]
        command = [sys.executable, "-P", "-m", "kveik.store.apart_process", *map(str, passed), str(os.getpid())]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[number for number in passed if number >= 0],
                    process_group=0,  # no Ctrl-C of its terminal; in a session of its own it would be scheduled apart
                )
        except OSError as error:
            ours.close()
            raise StoreError(f"cannot start a process: {error}") from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self._channel = Connection(ours.detach())
        size = len(memory.view) if memory is not None else 0
        try:
            opened = decode_opened(self.ask(encode(Opening(recipe.maker, dict(recipe.options), size)), recipe.open_s))
        except TimeoutError as error:
            self.end()
            raise StoreError(f"a process did not open the store within {recipe.open_s:g} s") from error
        except (OSError, EOFError) as error:
            why = self.how_it_ended()
            self.end()
            raise StoreError(f"a process that was to open the store ended {why}") from error
        if opened.trouble:
            self.end()
            raise StoreError(opened.trouble)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def ask(self, message: bytes, patience_s: float) -> bytes:
        """Its answer. Raises ``TimeoutError``, or ``EOFError`` or ``OSError`` if it ended."""
        self._channel.send_bytes(message)
        if not self._channel.poll(patience_s):
            raise TimeoutError
        return self._channel.recv_bytes()

    def leave(self) -> None:
        """Let the process end by itself, and see that it does."""
        self._channel.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """kill -9; whoever waits for its answer is told."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def how_it_ended(self) -> str:
        """With which code or signal, for people; once its channel is closed it is about to."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "its talk, but goes on"
        return f"by signal {-code}" if code < 0 else f"with code {code}"


def _plain(keys: Sequence[BlockKey]) -> list[bytes]:
    return [bytes(key) for key in keys]
