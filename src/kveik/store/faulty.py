"""Make a store misbehave on command, for tests and drills: delay, lose, corrupt, lie, forget, fail, hang, come late."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kveik.clock import Deadline
from kveik.errors import FrameError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult, BlockStore, Status, corrupt, failed
from kveik.store.wrapper import StoreWrapper

OPERATIONS = ("lookup", "get", "put", "delete")
#: Whose bytes a store with the fault ``foreign`` finds.
STRANGER = BlockKey.of(b"someone else's!!", bytes(32))


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. The default is nothing.

    ``every`` limits ``fail``, ``lose``, ``corrupt`` and ``foreign`` to each N-th key of the wrapper's life.
    """

    fail: str = ""  # reason that the affected operations fail with
    lose: bool = False  # puts say STORED and store nothing; lookups say yes to everything
    corrupt: bool = False  # puts store one wrong payload bit under the right checksum
    foreign: bool = False  # gets find a sound frame of another block, and see it by its key
    unverified: bool = False  # with `foreign`: they do not look, and say HIT
    delay_s: float = 0.0
    bytes_per_s: float = 0.0  # gets and puts of all threads together are no faster; 0: no limit
    operations: frozenset[str] = frozenset(OPERATIONS)
    every: int = 1


class Gate:
    """Holds calls until it is opened; tests wait on it instead of sleeping."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._open = False
        self._held = 0

    def hold(self) -> None:
        """Called by the store: block until the gate opens."""
        with self._condition:
            self._held += 1
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._open)
            self._held -= 1
            self._condition.notify_all()

    def wait_held(self, calls: int = 1, timeout_s: float = 10.0) -> bool:
        """Wait until ``calls`` calls are held; false after ``timeout_s``."""
        with self._condition:
            return self._condition.wait_for(lambda: self._held >= calls, timeout_s)

    def open(self) -> None:
        """Let all calls go, held ones and later ones."""
        with self._condition:
            self._open = True
            self._condition.notify_all()


class _Throttle:
    """Lets bytes pass at a rate, whichever thread moves them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def pass_through(self, size: int, bytes_per_s: float) -> None:
        """Wait until these bytes have passed."""
        with self._lock:
            now_s = time.monotonic()
            self._free_at_s = max(now_s, self._free_at_s) + size / bytes_per_s
            wait_s = self._free_at_s - now_s
        time.sleep(wait_s)


class FaultyStore(StoreWrapper):
    """``inner`` with :attr:`faults`, which may be changed at any time."""

    def __init__(self, inner: BlockStore, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        super().__init__(inner)
        self._gates: dict[str, Gate] = {}
        self._late: Gate | None = None
        self._count = itertools.count(1)
        self._throttle = _Throttle()
        self._put_keys: dict[BlockKey, None] = {}

    def __repr__(self) -> str:
        return f"FaultyStore({self._inner!r}, {self.faults!r}, hung={sorted(self._gates)})"

    @contextmanager
    def hung(self, *operations: str) -> Iterator[Gate]:
        """Calls of these operations hang until the gate is opened or the context ends."""
        gate = Gate()
        self._gates = {**self._gates, **dict.fromkeys(operations, gate)}
        try:
            yield gate
        finally:
            self._gates = {name: known for name, known in self._gates.items() if known is not gate}
            gate.open()

    @contextmanager
    def late(self) -> Iterator[Gate]:
        """Gets give up at once (FAILED ``timeout``), and write their buffers when the gate opens or the context ends.

        As network stores do: until then ``buffer_busy`` is true.
        """
        gate = Gate()
        self._late = gate
        try:
            yield gate
        finally:
            self._late = None
            gate.open()

    def forget_everything(self) -> None:
        """From now on it is empty, as a store is that came back without what it had."""
        keys, self._put_keys = list(self._put_keys), {}
        self._inner.delete(keys)

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Lookup; a failing one finds nothing, a losing one finds everything."""
        self._stall("lookup")
        present = self._inner.lookup(keys, deadline)
        if self._active("lookup", bool(self.faults.fail)):
            return [found and not self._hit() for found in present]
        if self._active("lookup", self.faults.lose):
            return [True] * len(keys)
        return present

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Get, or fail, or find another block, or write the buffer later."""
        self._stall("get")
        late = self._late
        if late is not None:
            return [self._get_late(late, key, buffer) for key, buffer in zip(keys, buffers, strict=True)]
        return [self._get(key, buffer, deadline) for key, buffer in zip(keys, buffers, strict=True)]

    def _get(self, key: BlockKey, buffer: memoryview, deadline: Deadline) -> BlockResult:
        faults = self.faults
        if self._active("get", bool(faults.fail)) and self._hit():
            return failed(faults.fail, "injected")
        result = self._inner.get([key], [buffer], deadline)[0]
        if result.status is not Status.HIT:
            return result
        self._slow_down(result.bytes)
        if self._active("get", faults.foreign) and self._hit():
            return self._get_stranger(key, buffer, result)
        return result

    def _get_stranger(self, key: BlockKey, buffer: memoryview, result: BlockResult) -> BlockResult:
        payload_bytes = result.bytes - frame.HEADER_BYTES
        buffer[frame.HEADER_BYTES : result.bytes] = b"\x5a" * payload_bytes
        frame.seal(buffer, STRANGER, payload_bytes, 0.0)
        if self.faults.unverified:
            return result
        try:
            frame.verify(buffer, key)
        except FrameError as error:
            self._inner.delete([key])
            return corrupt(error)
        return result

    def _get_late(self, gate: Gate, key: BlockKey, buffer: memoryview) -> BlockResult:
        def write() -> None:
            gate.hold()
            self._inner.get([key], [buffer], Deadline.after(60.0))

        writer = threading.Thread(target=write, name="kveik-late-write", daemon=True)
        writer.start()
        return BlockResult(Status.FAILED, reason="timeout", detail="injected", still_running=writer.is_alive)

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Put, or fail, or lose the block, or damage it."""
        self._stall("put")
        return [self._put(key, sealed, deadline) for key, sealed in zip(keys, frames, strict=True)]

    def _put(self, key: BlockKey, sealed: memoryview, deadline: Deadline) -> BlockResult:
        faults = self.faults
        wrong = faults.lose or faults.corrupt or bool(faults.fail)
        if not (self._active("put", wrong) and self._hit()):
            result = self._inner.put([key], [sealed], deadline)[0]
            if result.ok:
                self._put_keys[key] = None
                self._slow_down(result.bytes)
            return result
        if faults.fail:
            return failed(faults.fail, "injected")
        if faults.lose:
            return BlockResult(Status.STORED, len(sealed))
        self._put_keys[key] = None
        damaged = bytearray(sealed)
        damaged[frame.HEADER_BYTES] ^= 1
        return self._inner.put([key], [memoryview(damaged)], deadline)[0]

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Delete, or fail."""
        self._stall("delete")
        if self._active("delete", bool(self.faults.fail)):
            return [failed(self.faults.fail, "injected") for _ in keys]
        return self._inner.delete(keys)

    def _active(self, operation: str, wanted: bool) -> bool:
        return wanted and operation in self.faults.operations

    def _hit(self) -> bool:
        return next(self._count) % self.faults.every == 0

    def _slow_down(self, size: int) -> None:
        rate = self.faults.bytes_per_s
        if rate > 0 and size:
            self._throttle.pass_through(size, rate)

    def _stall(self, operation: str) -> None:
        gate = self._gates.get(operation)
        if gate is not None:
            gate.hold()
        if self.faults.delay_s and operation in self.faults.operations:
            time.sleep(self.faults.delay_s)
