"""Make a store misbehave on command, for tests and drills: delay, lose, corrupt, fail, hang."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kveik.clock import Deadline
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult, BlockStore, Status, failed
from kveik.store.wrapper import StoreWrapper

OPERATIONS = ("lookup", "get", "put", "delete")


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. The default is nothing.

    ``every`` limits ``fail``, ``lose`` and ``corrupt`` to each N-th key of the wrapper's life.
    """

    fail: str = ""  # reason that the affected operations fail with
    lose: bool = False  # puts say STORED and store nothing; lookups say yes to everything
    corrupt: bool = False  # puts store one wrong payload bit under the right checksum
    delay_s: float = 0.0
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


class FaultyStore(StoreWrapper):
    """``inner`` with :attr:`faults`, which may be changed at any time."""

    def __init__(self, inner: BlockStore, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        super().__init__(inner)
        self._gates: dict[str, Gate] = {}
        self._count = itertools.count(1)

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
        """Get, or fail."""
        self._stall("get")
        return [
            failed(self.faults.fail, "injected")
            if self._active("get", bool(self.faults.fail)) and self._hit()
            else self._inner.get([key], [buffer], deadline)[0]
            for key, buffer in zip(keys, buffers, strict=True)
        ]

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Put, or fail, or lose the block, or damage it."""
        self._stall("put")
        return [self._put(key, sealed, deadline) for key, sealed in zip(keys, frames, strict=True)]

    def _put(self, key: BlockKey, sealed: memoryview, deadline: Deadline) -> BlockResult:
        faults = self.faults
        wrong = faults.lose or faults.corrupt or bool(faults.fail)
        if not (self._active("put", wrong) and self._hit()):
            return self._inner.put([key], [sealed], deadline)[0]
        if faults.fail:
            return failed(faults.fail, "injected")
        if faults.lose:
            return BlockResult(Status.STORED, len(sealed))
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

    def _stall(self, operation: str) -> None:
        gate = self._gates.get(operation)
        if gate is not None:
            gate.hold()
        if self.faults.delay_s and operation in self.faults.operations:
            time.sleep(self.faults.delay_s)
